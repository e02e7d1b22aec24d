"""ANEMLL's file names and family habits, which its apps and scripts rely on."""

from anemone.architectures.base import DecoderConfig

PREFIXES = {"qwen2": "qwen25", "qwen3": "qwen"}
"""Start of file names by model_type; other families use their own name."""


def default_prefix(config: DecoderConfig) -> str:
    return PREFIXES.get(config.model_type, config.model_type)


def default_head_split(config: DecoderConfig) -> int:
    """ANEMLL cuts Llama heads in 8 and all others in 16 (an axis beyond 65,536 channels leaves the ANE)."""
    return 8 if config.model_type == "llama" else 16


def embeddings_name(prefix: str, bits: int | None) -> str:
    return f"{prefix}_embeddings{_suffix(bits)}"


def head_name(prefix: str, bits: int | None) -> str:
    return f"{prefix}_lm_head{_suffix(bits)}"


def chunk_name(prefix: str, bits: int | None, index: int, count: int) -> str:
    """``index`` counts from 0, the name from 1."""
    return f"{prefix}_FFN_PF{_suffix(bits)}_chunk_{index + 1:02d}of{count:02d}"


def _suffix(bits: int | None) -> str:
    return f"_lut{bits}" if bits else ""
