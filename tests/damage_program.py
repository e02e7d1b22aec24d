"""Damage to what a model file says, which stays a well-formed message."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

SIZES = (0, 1, 2, 3, 7, 2**16, 2**31 - 1, 2**31, 2**40, 2**63, 2**64 - 1)
NAMES = (
    "@model_path/../../secret.bin",
    "@model_path/weights/../../../../../secret.bin",
    "/etc/passwd",
    "@model_path//etc/passwd",
    "@model_path/",
    "@model_path/weights",
    "@model_path/\0",
    "@model_path/" + "a" * 5000,
    "",
    "weights/weight.bin",
)


def program(rng: Random, copy: Path) -> str:
    """One to three changes of what the model file says, which stays a well-formed message."""
    from anemone.execute import proto

    path = next(copy.rglob("model.mlmodel"))
    model = proto.parse_model(path.read_bytes(), path)
    edits = [rng.choice(EDITS) for _ in range(rng.choice([1, 1, 2, 3]))]
    done = []
    for edit in edits:
        try:
            done.append(f"{edit.__name__} {edit(rng, model) or ''}")
        except (IndexError, ValueError):  # nothing of that kind is left
            done.append(f"no {edit.__name__}")
    path.write_bytes(model.SerializeToString())
    return ", ".join(done)


def functions(model: Any) -> list[Any]:
    return [model.mlProgram.functions[name] for name in sorted(model.mlProgram.functions)]


def blocks(model: Any) -> list[Any]:
    found = [function.block_specializations[function.opset] for function in functions(model)]
    for block in found:
        found += [inner for op in block.operations for inner in op.blocks]
    return found


def ops(model: Any) -> list[Any]:
    return [op for block in blocks(model) for op in block.operations]


def messages(model: Any, name: str) -> list[Any]:
    """Every message of this kind in the program."""
    return [message for message in walk(model.mlProgram) if message.DESCRIPTOR.name == name]


def walk(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            for key in sorted(value):
                if hasattr(value[key], "ListFields"):
                    yield from walk(value[key])
        else:
            for part in value if hasattr(value, "__len__") else [value]:
                yield from walk(part)


def size(rng: Random, model: Any) -> str:
    dimension = rng.choice(messages(model, "Dimension"))
    if rng.random() < 0.1:
        dimension.unknown.variadic = rng.random() < 0.5
    else:
        dimension.constant.size = rng.choice(SIZES)
    return str(dimension).strip().replace("\n", " ")


def rank(rng: Random, model: Any) -> str:
    tensor = rng.choice(messages(model, "TensorType"))
    if tensor.dimensions and rng.random() < 0.5:
        del tensor.dimensions[rng.randrange(len(tensor.dimensions))]
        return "less"
    for _ in range(rng.choice([1, 2, 100])):
        tensor.dimensions.add().constant.size = rng.choice([1, 1, 5])
    return "more"


def dtype(rng: Random, model: Any) -> str:
    tensor = rng.choice(messages(model, "TensorType"))
    tensor.dataType = rng.choice([0, 1, 2, 10, 11, 12, 13, 21, 23, 24, 25, 31, 35, 36, 37, 38, 39, 40, 99, -1])
    return str(tensor.dataType)


def kind_of_type(rng: Random, model: Any) -> str:
    value = rng.choice(messages(model, "ValueType"))
    kind = rng.choice(["listType", "tupleType", "dictionaryType", "stateType", "tensorType"])
    getattr(value, kind).SetInParent()
    return kind


def blob(rng: Random, model: Any) -> str:
    value = rng.choice(messages(model, "BlobFileValue"))
    if rng.random() < 0.5:
        value.fileName = rng.choice(NAMES)
    else:
        value.offset = rng.choice([*SIZES, value.offset + 1, value.offset + 64, max(value.offset, 64) - 64])
    return f"{value.fileName[:60]!r} {value.offset}"


def immediate(rng: Random, model: Any) -> str:
    tensor = rng.choice(messages(model, "TensorValue"))
    field = tensor.WhichOneof("value")
    if field is None or rng.random() < 0.2:
        getattr(tensor, rng.choice(["floats", "ints", "strings", "bytes", "longInts", "bools"])).SetInParent()
        return "emptied"
    values = getattr(tensor, field).values
    if field == "bytes":
        tensor.bytes.values = values[: rng.randrange(len(values) + 1)] + rng.randbytes(rng.randint(0, 3))
        return "bytes"
    if field == "strings":
        tensor.strings.values[:] = [rng.choice(["", "same", "x" * 500, "\0", "fp16", "valid"])]
        return "text"
    limits = [-(2**31), 2**31 - 1, -1, 0, 1, 2, 100, 65536, 10**9]
    change = rng.choice(["one", "one", "one", "more", "fewer"])
    if change == "fewer" or not values:
        del values[:1]
    elif change == "more":
        values.append(values[0])
    else:
        values[rng.randrange(len(values))] = bool(rng.randrange(2)) if field == "bools" else rng.choice(limits)
    return f"{change} {list(values)[:6]}"


def order(rng: Random, model: Any) -> str:
    block = rng.choice(blocks(model))
    change = rng.choice(["drop", "double", "swap", "reverse"])
    i, j = rng.randrange(len(block.operations)), rng.randrange(len(block.operations))
    if change == "drop":
        del block.operations[i]
    elif change == "double":
        block.operations.add().CopyFrom(block.operations[i])
    elif change == "reverse":
        copies = [type(op).FromString(op.SerializeToString()) for op in block.operations]
        del block.operations[:]
        block.operations.extend(reversed(copies))
    else:
        kept = type(block.operations[i]).FromString(block.operations[i].SerializeToString())
        block.operations[i].CopyFrom(block.operations[j])
        block.operations[j].CopyFrom(kept)
    return f"{change} {i} {j}"


def kind_of_op(rng: Random, model: Any) -> str:
    from anemone.execute.ops import DEFINITIONS

    op = rng.choice(ops(model))
    loops = {"while_loop"}  # a loop may run for ever, and rightly so
    op.type = rng.choice([*sorted(set(DEFINITIONS) - loops), "const", "constexpr_lut_to_dense", "constexpr_cast", ""])
    return op.type


def operand(rng: Random, model: Any) -> str:
    op = rng.choice([op for op in ops(model) if op.inputs])
    key = rng.choice(sorted(op.inputs))
    names = [output.name for other in ops(model) for output in other.outputs]
    change = rng.choice(["name", "name", "own", "drop", "more", "value", "other", "none"])
    arguments = op.inputs[key].arguments
    if change == "drop":
        del op.inputs[key]
    elif change == "none":
        del arguments[:]
    elif change == "more":
        arguments.add().name = rng.choice(names)
    elif change == "value":
        arguments[0].value.type.tensorType.dataType = 23
        arguments[0].value.immediateValue.tensor.ints.values.append(rng.choice([-1, 0, 2**31 - 1]))
    elif change == "other":
        op.inputs[rng.choice(["x", "y", "axis", "junk", ""])].arguments.add().name = rng.choice(names)
    else:
        arguments[0].name = op.outputs[0].name if change == "own" else rng.choice([*names, "", "nowhere"])
    return f"{change} {key} of {op.type}"


def result(rng: Random, model: Any) -> str:
    if rng.random() < 0.3:
        outputs = rng.choice(blocks(model)).outputs
        outputs[:] = rng.choice([[], [*outputs, "nowhere"], [*outputs, *outputs], [""]])
        return str(list(outputs))[:80]
    op = rng.choice(ops(model))
    change = rng.choice(["none", "more", "name"])
    if change == "none":
        del op.outputs[:]
    elif change == "more":
        op.outputs.add().CopyFrom(op.outputs[0])
    else:
        op.outputs[0].name = rng.choice(["", "x", "other"])
    return f"{change} {op.type}"


def attribute(rng: Random, model: Any) -> str:
    op = rng.choice([op for op in ops(model) if op.attributes])
    key = rng.choice(sorted(op.attributes))
    if rng.random() < 0.5:
        del op.attributes[key]
    else:
        op.attributes[key].CopyFrom(rng.choice(messages(model, "Value")))
    return f"{key} of {op.type}"


def function(rng: Random, model: Any) -> str:
    name = rng.choice(sorted(model.mlProgram.functions))
    message = model.mlProgram.functions[name]
    change = rng.choice(["opset", "blocks", "inputs", "state", "name", "gone"])
    if change == "opset":
        message.opset = rng.choice(["", "CoreML99"])
    elif change == "blocks":
        message.block_specializations.clear()
    elif change == "inputs":
        del message.inputs[rng.randrange(len(message.inputs)) :]
    elif change == "state":
        value = rng.choice(list(message.inputs))
        value.type.stateType.wrappedType.tensorType.dataType = 10
    elif change == "name":
        model.mlProgram.functions["other"].CopyFrom(message)
        del model.mlProgram.functions[name]
    else:
        del model.mlProgram.functions[name]
    return f"{change} {name}"


def description(rng: Random, model: Any) -> str:
    place = rng.choice([model.description, *model.description.functions])
    change = rng.choice(["default", "input", "output", "shape", "shape", "kind", "optional", "flexible"])
    if change == "default":
        model.description.defaultFunctionName = rng.choice(["", "nowhere"])
        return change
    features = [*place.input, *place.output, *place.state]
    feature = rng.choice(features)
    if change in ("input", "output"):
        del getattr(place, change)[:]
    elif change == "kind":
        getattr(feature.type, rng.choice(["imageType", "stringType", "dictionaryType", "stateType"])).SetInParent()
    elif change == "optional":
        feature.type.isOptional = True
    else:
        array = feature.type.multiArrayType
        sizes = [rng.choice([-1, 0, 1, 5, 2**31, 2**62, -(2**63)]) for _ in range(rng.randint(0, 6))]
        if change == "flexible":
            array.enumeratedShapes.shapes.add().shape.extend(sizes)
            array.shape[:] = sizes
        else:
            array.shape[:] = sizes
            array.dataType = rng.choice([0, 65568, 131104])
    return f"{change} {feature.name}"


def nesting(rng: Random, model: Any) -> str:
    block = rng.choice(blocks(model))
    depth = rng.choice([3, 20, 90])
    for _ in range(depth):
        op = block.operations.add(type="cond")
        op.outputs.add(name="deep").type.tensorType.dataType = 11
        block = op.blocks.add()
    return str(depth)


def kind_of_model(rng: Random, model: Any) -> str:
    kind = rng.choice(["neuralNetwork", "pipeline", "treeEnsembleClassifier"])
    getattr(model, kind).SetInParent()
    return kind


EDITS = [
    *[size, immediate, operand, blob] * 3,
    *[dtype, description] * 2,
    *[rank, kind_of_type, order, kind_of_op, result, attribute, function, nesting, kind_of_model],
]
