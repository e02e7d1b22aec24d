"""Which decoder a checkpoint describes. One file per model_type, named as it, holds an ARCHITECTURE."""

from anemone.architectures.base import DecoderConfig, Rope
from anemone.architectures.registry import supported
from anemone.architectures.resolve import Model, resolve
from anemone.architectures.tensors import check_tensors, layer_shapes, tensor_shapes

__all__ = ["DecoderConfig", "Model", "Rope", "check_tensors", "layer_shapes", "resolve", "supported", "tensor_shapes"]
