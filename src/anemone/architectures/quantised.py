"""Quantised checkpoints: which format one is in, and what turns it back into plain floats."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Tensor(Protocol):
    """What is known of a checkpoint tensor from its header; dtype in safetensors' words."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


FLOATS = ("F32", "F16", "BF16")

_ORIGINAL = "convert the unquantised original instead"
_TRANSFORMERS = "save it once through transformers with a quantization_config that has dequantize=True"
_ADVICE = {
    "fp8": f"{_TRANSFORMERS} (FineGrainedFP8Config)",
    "mxfp4": f"{_TRANSFORMERS} (Mxfp4Config)",
    "compressed-tensors": f"{_TRANSFORMERS} (CompressedTensorsConfig)",
    "bitsandbytes": "load it with transformers, call model.dequantize() and save it",
    "MLX": "run `mlx_lm.convert --hf-path SRC --mlx-path DIR --dequantize` and convert DIR",
}

# Tensors that stand beside a packed weight, and the format they belong to; the first that is found decides.
_COMPANIONS = {
    ".weight_scale_inv": "fp8",
    ".weight_packed": "compressed-tensors",
    ".weight_scale": "compressed-tensors",
    ".qweight": "GPTQ or AWQ",
    ".absmax": "bitsandbytes",
    ".scales": "MLX",
}


def quantisation(config: Mapping[str, Any]) -> str | None:
    """The quantisation format that a config declares, or None."""
    if beside := config.get("hf_quant_config"):  # ModelOpt's own file, which alone tells it in older exports
        return f"modelopt {beside.get('quantization', {}).get('quant_algo') or ''}".strip()
    declared = config.get("quantization_config") or config.get("compression_config")
    if not declared:
        return "MLX" if config.get("quantization") else None
    if not isinstance(declared, Mapping):
        return repr(declared)
    producer = (declared.get("producer") or {}).get("name")
    method = declared.get("quant_method") or producer
    if method is None and "group_size" in declared and "bits" in declared:
        method = "MLX"
    if method is None and (declared.get("load_in_4bit") or declared.get("load_in_8bit")):
        method = "bitsandbytes"
    detail = declared.get("format") or declared.get("quant_algo") or declared.get("fmt")
    return " ".join(str(part) for part in (method or "unnamed", detail) if part)


def quantised_tensor(tensors: Iterable[Tensor]) -> tuple[str, str] | None:
    """(format, evidence) of a tensor that only a quantised checkpoint has, or None."""
    tensors = list(tensors)
    for tensor in tensors:
        if tensor.dtype.startswith("F8"):
            return "fp8", f"{tensor.name} is {tensor.dtype}"
    for suffix, name in _COMPANIONS.items():
        for tensor in tensors:
            if tensor.name.endswith(suffix):
                return name, f"it has {tensor.name}"
    return None


def advice(name: str) -> str:
    """What to do about a checkpoint in the format ``name``, as the end of a sentence."""
    return next((text for start, text in _ADVICE.items() if name.lower().startswith(start.lower())), _ORIGINAL)
