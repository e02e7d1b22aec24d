"""Programs as they lie in the files, read through coremltools' protobuf; and checkpoints that are only headers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tiny import CLASSES, rope_keys, tiny_shapes

DTYPES = {10: "fp16", 11: "fp32", 1: "bool", 2: "string", 21: "int8", 22: "int16", 23: "int32", 31: "uint8"}


def spec(package: Path) -> Any:
    """The Model message."""
    import coremltools as ct

    return ct.utils.load_spec(str(package))


def functions(package: Path) -> dict[str, Any]:
    """Function message by name."""
    return dict(sorted(spec(package).mlProgram.functions.items()))


def block(function: Any) -> Any:
    (found,) = function.block_specializations.values()
    return found


def operations(function: Any) -> Iterator[Any]:
    yield from block(function).operations


def computed(function: Any) -> Iterator[Any]:
    """The operations that run: neither constants nor the decoding of weights."""
    for op in operations(function):
        if op.type != "const" and not op.type.startswith("constexpr_"):
            yield op


def tensor(value_type: Any) -> tuple[str, tuple[int, ...]]:
    """dtype and shape of a value or state; -1 for a size that is known at run time only."""
    if value_type.WhichOneof("type") == "stateType":
        value_type = value_type.stateType.wrappedType
    inner = value_type.tensorType
    shape = tuple(d.constant.size if d.WhichOneof("dimension") == "constant" else -1 for d in inner.dimensions)
    return DTYPES.get(inner.dataType, str(inner.dataType)), shape


def types(function: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """dtype and shape of every value by name."""
    values = [*function.inputs, *(output for op in operations(function) for output in op.outputs)]
    return {value.name: tensor(value.type) for value in values}


def operand(op: Any, name: str) -> list[str]:
    """Names of the values bound to an operand."""
    return [binding.name for binding in op.inputs[name].arguments if binding.name] if name in op.inputs else []


def constants(function: Any) -> dict[str, Any]:
    """Small integer, bool and string constants by name: those that are written into the program."""
    found = {}
    for op in operations(function):
        if op.type == "const":
            value = op.attributes["val"]
            if value.WhichOneof("value") == "immediateValue":
                found[op.outputs[0].name] = _immediate(value)
    return found


def constant(op: Any, name: str, known: dict[str, Any]) -> Any:
    """The constant bound to an operand, or None."""
    if name not in op.inputs:
        return None
    (binding,) = op.inputs[name].arguments
    return known.get(binding.name) if binding.name else _immediate(binding.value)


def _immediate(value: Any) -> Any:
    inner = value.immediateValue.tensor
    kind = inner.WhichOneof("value")
    if kind == "bytes":
        return inner.bytes.values
    return list(getattr(inner, kind).values) if kind else []


def listing(package: Path) -> str:
    """Every operation that runs, in order, with what it gives; a section per function."""
    lines = []
    for name, function in functions(package).items():
        lines.append(f"{name}({', '.join(f'{v.name} {_text(tensor(v.type))}' for v in function.inputs)})")
        for op in computed(function):
            given = ", ".join(_text(tensor(output.type)) for output in op.outputs)
            lines.append(f"  {op.type:16}{given}".rstrip())
        lines.append(f"  -> {', '.join(block(function).outputs)}")
    return "\n".join(lines) + "\n"


def _text(value: tuple[str, tuple[int, ...]]) -> str:
    dtype, shape = value
    return f"{dtype}[{','.join(map(str, shape))}]"


def shape_only_checkpoint(path: Path, model_type: str, *, vocab: int = 151936, tied: bool = True, **sizes: int) -> Path:
    """A folder that looks like a checkpoint of any size: true headers over a file of holes, bf16."""
    head_dim = sizes.get("head_dim", 128)
    config = {
        "architectures": [CLASSES[model_type]],
        "model_type": model_type,
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["intermediate"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": sizes.get("max_positions", 131072),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        **rope_keys("v4", None, "bfloat16"),
    }
    if model_type in ("qwen2", "mistral"):
        del config["attention_bias"]
    header, offset = {}, 0
    for name, shape in tiny_shapes(config).items():
        end = offset + 2 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    text = json.dumps(header).encode()
    with open(path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return path
