"""GGUF files for tests, written with the gguf library and its own name tables."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from safetensors.numpy import load_file


def write_gguf(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[NDArray[Any], Kind]]) -> Path:
    """``metadata`` with its general.architecture; ``tensors``: name -> (stored array, bytes if quantised; its type)."""
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key != "general.architecture":
            add_value(writer, key, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def metadata_of(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """What llama.cpp's converter writes for a config.json in the v4 layout."""
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config.get("rope_theta", 10000.0),
    }
    if "head_dim" in config:
        values |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    if config.get("sliding_window") and architecture == "gemma3":
        values["attention.sliding_window"] = config["sliding_window"]
    return {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in values.items()}


def convert(folder: Path, path: Path, architecture: str, kind: Kind = Kind.F32, **metadata: Any) -> Path:
    """A float32 Hugging Face folder as llama.cpp's converter would write it, matrices of type ``kind``."""
    config = json.loads((folder / "config.json").read_text())
    models = {name: model for model, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(models[architecture], config["num_hidden_layers"])
    stored: dict[str, tuple[NDArray[Any], Kind]] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if architecture == "llama" and ".q_proj." in name:
            tensor = permute(tensor, config["num_attention_heads"])
        if architecture == "llama" and ".k_proj." in name:
            tensor = permute(tensor, config["num_key_value_heads"])
        if architecture == "gemma3" and name.endswith("norm.weight"):
            tensor = tensor + 1
        chosen = kind if tensor.ndim == 2 else Kind.F32
        stored[names.get_name(name, (".weight", ".bias"))] = (gguf.quantize(tensor, chosen), chosen)
    return write_gguf(path, metadata_of(config, architecture) | metadata, stored)


def permute(tensor: NDArray[Any], heads: int) -> NDArray[Any]:
    """llama.cpp's row order for rotary heads: (heads, 2, half, ...) -> (heads, half, 2, ...)."""
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
