"""Tensors of a GGUF file as Hugging Face stores them: names, row order, norm weights and numbers.

llama.cpp's converter (convert_hf_to_gguf.py) renames tensors, interleaves the two halves of each rotary head in the
llama family, and stores gemma's norm weights as 1 + w. All three are undone here. A tensor without a Hugging Face
name keeps its own, so that it is refused where unknown tensors are.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from gguf.constants import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from anemone.checkpoint.base import TensorInfo
from anemone.checkpoint.gguf_config import synthesise_config
from anemone.checkpoint.gguf_file import GgufFile, GgufTensor
from anemone.checkpoint.mapping import MappedFiles
from anemone.errors import CheckpointError

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TOP_TENSOR = re.compile(r"(\w+)\.(weight|bias)")

ROPE_FACTORS = "rope_freqs.weight"  # llama3 scaling as one divisor per frequency: goes into the config

_PLAIN = {
    Kind.F32: ("F32", np.dtype("<f4")),
    Kind.F16: ("F16", np.dtype("<f2")),
    Kind.BF16: ("BF16", np.dtype(ml_dtypes.bfloat16)),
}
_INTEGERS = {Kind.I8: "I8", Kind.I16: "I16", Kind.I32: "I32", Kind.I64: "I64", Kind.F64: "F64"}
_ROWS_AT_ONCE = 1024  # gguf.dequantize holds its result twice


class GgufWeights:
    """The tensors of a GGUF file under their Hugging Face names."""

    def __init__(self, file: GgufFile) -> None:
        """CheckpointError or UnsupportedModel when the metadata does not describe a model that is understood."""
        self.files = file.files
        self._architecture = str(file.metadata.get("general.architecture"))
        self._stored = {
            hugging_face_name(name, self._architecture): tensor
            for name, tensor in file.tensors.items()
            if name != ROPE_FACTORS
        }
        self._mapped = MappedFiles()
        shapes = {name: stored.shape for name, stored in self._stored.items()}
        factors = file.tensors.get(ROPE_FACTORS)
        self.config = synthesise_config(
            file.metadata, shapes, None if factors is None else self._numbers(factors, slice(None))
        )

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Quantised tensors count as F32, which is what ``read`` gives."""
        return {name: TensorInfo(name, stored.shape, _dtype_name(stored)) for name, stored in self._stored.items()}

    def read(self, name: str, rows: slice | None = None) -> NDArray[Any]:
        """See Checkpoint.read."""
        stored = self._stored.get(name)
        if stored is None:
            raise CheckpointError(f"The checkpoint has no tensor {name}.")
        if stored.kind in _INTEGERS:
            raise CheckpointError(f"Tensor {name} is stored as {stored.kind.name}, which is not a weight format.")
        order = self._row_order(name, stored.shape[0])
        wanted = slice(None) if rows is None else rows
        values = self._numbers(stored, wanted if order is None else order[wanted])
        if self._architecture == "gemma3" and name.endswith("norm.weight"):
            values = values - np.asarray(1, values.dtype)
        return values

    def _numbers(self, stored: GgufTensor, rows: slice | NDArray[np.intp]) -> NDArray[Any]:
        raw = self._mapped.bytes(stored.file)[stored.start : stored.start + stored.nbytes]
        if stored.kind in _PLAIN:
            plain: NDArray[Any] = raw.view(_PLAIN[stored.kind][1]).reshape(stored.shape)[rows]
            return plain
        blocks = raw.reshape(*stored.shape[:-1], -1)[rows]
        values = np.empty((*blocks.shape[:-1], stored.shape[-1]), np.float32)
        for start in range(0, len(blocks), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            values[part] = gguf.dequantize(blocks[part], stored.kind)
        return values

    def _row_order(self, name: str, rows: int) -> NDArray[np.intp] | None:
        """For each row of the Hugging Face tensor, its row in the file; None when they are the same."""
        if self._architecture != "llama":
            return None
        if ".q_proj." in name:
            heads = self.config["num_attention_heads"]
        elif ".k_proj." in name:
            heads = self.config["num_key_value_heads"]
        else:
            return None
        return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()  # (heads, half, 2) -> (heads, 2, half)

    def release(self) -> None:
        """See Checkpoint.release."""
        self._mapped.release()


def hugging_face_name(name: str, architecture: str) -> str:
    """blk.0.attn_q.weight -> model.layers.0.self_attn.q_proj.weight; unknown names as they are."""
    layer_names = _GEMMA3_LAYER if architecture == "gemma3" else _LAYER
    if (match := _LAYER_TENSOR.fullmatch(name)) and match[2] in layer_names:
        return f"model.layers.{match[1]}.{layer_names[match[2]]}.{match[3]}"
    if (match := _TOP_TENSOR.fullmatch(name)) and match[1] in _TOP:
        return f"{_TOP[match[1]]}.{match[2]}"
    return name


def _dtype_name(stored: GgufTensor) -> str:
    if stored.kind in _PLAIN:
        return _PLAIN[stored.kind][0]
    return _INTEGERS.get(stored.kind, "F32")
