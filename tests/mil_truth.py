"""coremltools as the truth about packages: the same program through its Builder, and comparing but for names."""

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil.frontend.milproto.load import load as load_milproto
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function as MilFunction
from coremltools.converters.mil.mil import Program as MilProgram
from coremltools.converters.mil.mil import get_new_symbol, types

from anemone.compress.tensor import Dense, Lut
from anemone.graph.ir import Function, Op, Program, Value, Weight
from anemone.package.mlpackage import Description, PackageWriter, Written

WEIGHTS = Path("Data/com.apple.CoreML/weights")
MIL_TYPES = {"fp16": types.fp16, "fp32": types.fp32, "int32": types.int32, "bool": types.bool}
NO_PASSES = ct.PassPipeline.EMPTY


def write(
    path: Path, program: Program, tensors: dict[str, Dense | Lut], description: Description | None = None
) -> Written:
    """The package that we make of ``program``."""
    with PackageWriter(path) as package:
        for key, weight in program.weights().items():
            tensor = tensors[key]
            if isinstance(tensor, Lut):
                package.add_lut(key, weight.shape, tensor)
            else:
                package.add_dense(key, weight.shape, tensor.values)
        return package.finish(program, description or Description())


def write_with_coremltools(program: Program, tensors: dict[str, Dense | Lut], path: Path) -> Path:
    """The package that coremltools makes of ``program`` when each operation is given to its Builder."""
    result = MilProgram()
    for function in program.functions:
        result.add_function(function.name, _built(function, tensors))
    first = program.functions[0]
    result.default_function_name = first.name
    result.export_as_multifunction = len(program.functions) > 1 or first.name != "main"
    inputs = [
        ct.TensorType(v.name, ct.EnumeratedShapes(first.flexible[v.name], default=v.shape), dtype=np.int32)
        for v in first.inputs
        if v.name in first.flexible
    ]
    return convert(result, path, inputs=inputs or None)


def convert(program: MilProgram, path: Path, passes: Any = NO_PASSES, inputs: Any = None) -> Path:
    ct.convert(
        program,
        inputs=inputs,
        convert_to="mlprogram",
        pass_pipeline=passes,
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
    ).save(str(path))
    return path


def load(path: Path) -> MilProgram:
    """The package as coremltools' own program."""
    model = ct.utils.load_spec(str(path))
    program = load_milproto(model, model.specificationVersion, str(path / WEIGHTS))
    order = [function.name for function in model.description.functions] or ["main"]
    program.functions = {name: program.functions[name] for name in order}  # the file's map has no order
    program.export_as_multifunction = bool(model.description.functions)
    program.default_function_name = model.description.defaultFunctionName or "main"
    return program


def _built(function: Function, tensors: dict[str, Dense | Lut]) -> MilFunction:
    mb.name_count.clear()
    inputs = {value.name: _placeholder(value, function) for value in function.inputs}
    for state in function.states:
        inputs[state.name] = mb.state_tensor_placeholder(shape=state.shape, dtype=MIL_TYPES[state.dtype])
    for name, placeholder in inputs.items():
        placeholder.name = placeholder.outputs[0].name = name
    with MilFunction(inputs, ct.target.iOS18) as result:
        known = dict(result.inputs)
        updated: dict[str, Any] = {}
        for op in function.ops:
            _add(op, function, known, updated, tensors)
        result.set_outputs([known[value.name] for value in function.outputs])
    return result


def _placeholder(value: Value, function: Function) -> Any:
    shapes = function.flexible.get(value.name, (value.shape,))
    shape = [s[0] if len(set(s)) == 1 else get_new_symbol() for s in zip(*shapes, strict=True)]
    return mb.placeholder(shape=shape, dtype=MIL_TYPES[value.dtype])


def _add(op: Op, function: Function, known: dict, updated: dict, tensors: dict[str, Dense | Lut]) -> None:
    def given(operand: Any) -> Any:
        if isinstance(operand, tuple):
            return [given(part) for part in operand]
        if not isinstance(operand, Value):
            return operand
        if operand.name not in known:
            weight = function.weights[operand.name]
            known[operand.name] = _weight(weight, tensors[weight.key])
        return known[operand.name]

    inputs = {key: given(operand) for key, operand in op.inputs.items()}
    if op.kind == "write_state":
        state = op.inputs["input"].name
        updated[state] = mb.coreml_update_state(state=inputs["input"], value=inputs["data"])
    elif op.kind == "read_state" and op.inputs["input"].name in updated:
        known[op.outputs[0].name] = updated[op.inputs["input"].name]
    else:
        results = getattr(mb, op.kind)(**inputs, name=op.outputs[0].name)
        results = results if isinstance(results, (tuple, list)) else [results]
        for value, result in zip(op.outputs, results, strict=True):
            result.name = value.name
            known[value.name] = result


def _weight(weight: Weight, tensor: Dense | Lut) -> Any:
    name = weight.key.replace(".", "_")
    if isinstance(tensor, Dense):
        result = mb.const(val=tensor.values.reshape(weight.shape), name=name)
        result.op.weight_id = weight.key
        return result
    numpy_type = types.type_mapping.string_to_nptype(f"uint{tensor.bits}")
    indices = mb.const(val=tensor.indices.reshape(weight.shape).astype(numpy_type), name=f"{name}_indices")
    table_shape = (len(tensor.table), *(1,) * (len(weight.shape) - 1), 2**tensor.bits, 1)
    lut = mb.const(val=tensor.table.reshape(table_shape), name=f"{name}_lut")
    indices.op.weight_id, lut.op.weight_id = f"{weight.key} indices", f"{weight.key} lut"
    return mb.constexpr_lut_to_dense(indices=indices, lut=lut, name=f"{name}_palettized")


def normal(path: Path) -> dict[str, Any]:
    """Everything that a package says, constants by content and computed values by number."""
    model = ct.utils.load_spec(str(path))
    file = path / WEIGHTS / "weight.bin"
    blob = file.read_bytes() if file.exists() else b""
    description = type(model.description).FromString(model.description.SerializeToString())
    description.ClearField("metadata")
    return {
        "version": (model.specificationVersion, model.isUpdatable, model.WhichOneof("Type"), model.mlProgram.version),
        "description": description.SerializeToString(deterministic=True),
        "attributes": {key: _bytes(value.type) for key, value in model.mlProgram.attributes.items()},
        "functions": {name: _function(f, blob) for name, f in model.mlProgram.functions.items()},
    }


def _function(function: Any, blob: bytes) -> dict[str, Any]:
    ((opset, block),) = function.block_specializations.items()
    known: dict[str, Any] = {value.name: ("input", value.name) for value in function.inputs}
    constants: Counter[Any] = Counter()
    operations = []
    for op in block.operations:
        outputs = [_bytes(output.type) for output in op.outputs]
        inputs = {
            key: tuple(known[b.name] if b.name else _content(b.value, blob) for b in argument.arguments)
            for key, argument in op.inputs.items()
        }
        attributes = sorted(op.attributes)
        assert op.attributes["name"].immediateValue.tensor.strings.values[0]
        if op.type == "const":
            assert attributes == ["name", "val"]
            known[op.outputs[0].name] = _content(op.attributes["val"], blob)
            constants[known[op.outputs[0].name], *outputs] += 1
        elif op.type.startswith("constexpr_"):
            known[op.outputs[0].name] = (op.type, *sorted(inputs.items()), *outputs, *attributes)
        else:
            operations.append((op.type, inputs, outputs, attributes))
            for i, output in enumerate(op.outputs):
                known[output.name] = ("computed", len(operations), i)
    return {
        "opset": (function.opset, opset),
        "inputs": [(value.name, _bytes(value.type)) for value in function.inputs],
        "outputs": [(name, known[name]) for name in block.outputs],
        "operations": operations,
        "constants": constants,
        "attributes": (sorted(function.attributes), sorted(block.attributes)),
    }


def _content(value: Any, blob: bytes) -> tuple[Any, ...]:
    if value.WhichOneof("value") == "immediateValue":
        return (_bytes(value.type), _bytes(value.immediateValue))
    assert value.blobFileValue.fileName == "@model_path/weights/weight.bin"
    sentinel, code, size, start, unused = struct.unpack_from("<IIQQQ", blob, value.blobFileValue.offset)
    assert sentinel == 0xDEADBEEF
    return (_bytes(value.type), code, unused, blob[start : start + size])


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))
