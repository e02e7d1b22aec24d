"""meta.yaml: the file that ANEMLL's apps read to find packages and shapes. Names and value kinds are theirs."""

from collections.abc import Sequence
from typing import Any

from anemone.architectures.base import DecoderConfig
from anemone.compress.spec import LutSpec
from anemone.recipe import Recipe

LAYOUT_VERSION = "0.3.5"
"""Version of the meta.yaml layout. Readers treat some values specially, so it is the layout's and not this tool's."""

DESCRIPTION = """\
{name}: a language model as Core ML packages for the Apple Neural Engine.
Context {context} tokens, prefill batch {batch}, {chunks} decoder package(s).
Needs macOS 15 or iOS 18. Written and checked by anemone; manifest.json holds the figures.
"""


def meta_values(
    name: str, recipe: Recipe, config: DecoderConfig, prefix: str, head_sizes: Sequence[int],
    files: dict[str, str], chunks: int,
) -> dict[str, Any]:  # fmt: skip
    """The content of meta.yaml. ``files`` names the packages: embeddings, lm_head and ffn (its first chunk)."""
    parameters: dict[str, Any] = {"context_length": recipe.context, "batch_size": recipe.batch}
    parameters |= _lut("lut_embeddings", recipe.lut_embeddings)
    parameters |= _lut("lut_ffn", recipe.lut_ffn)
    parameters |= _lut("lut_lmhead", recipe.lut_lmhead)
    parameters |= {"num_chunks": chunks, "model_prefix": prefix, **files, "split_lm_head": len(head_sizes)}
    if recipe.argmax:
        parameters["argmax_in_model"] = True
    parameters |= {"vocab_size": config.vocab, "lm_head_chunk_sizes": list(head_sizes), "prefill_dynamic_slice": True}
    info = {
        "name": f"anemll-{name}-ctx{recipe.context}",
        "version": LAYOUT_VERSION,
        "description": DESCRIPTION.format(name=name, context=recipe.context, batch=recipe.batch, chunks=chunks),
        "license": "that of the source checkpoint",
        "author": "anemone",
        "framework": "Core ML",
        "language": "Python",
        "architecture": config.model_type,
        "parameters": parameters,
    }
    return {"model_info": info}


def package_metadata(recipe: Recipe, lut: LutSpec | None, version: str) -> dict[str, str]:
    """User-defined metadata that every package carries: ANEMLL's keys, and ours under com.anemone."""
    values = {
        "com.anemll.info": f"Converted with anemone {version}",
        "com.anemll.context_length": str(recipe.context),
        "com.anemll.batch_size": str(recipe.batch),
        "com.anemone.version": version,
        "com.anemone.minimum_os": "macOS 15, iOS 18",
    }
    return values | ({"com.anemll.lut_bits": str(lut.bits)} if lut else {})


def _lut(key: str, lut: LutSpec | None) -> dict[str, Any]:
    if lut is None:
        return {key: "none"}
    return {key: lut.bits, f"{key}_per_channel": lut.group}
