"""MIL as text: what is refused, where and why; and that no text takes long."""

import contextlib
import time

import numpy as np
import pytest

from anemone.errors import ExecuteError
from anemone.execute import Program
from anemone.execute.proto import new_model
from anemone.execute.text.parser import parse_program

HEAD = "program(1.0)\n{\n  func main<ios16>(tensor<fp32, [2]> x) {\n"
TAIL = "\n  } -> (y);\n}\n"
Y = "    tensor<fp32, [2]> y = relu(x = x);"


def folder_of(path, text, metadata=None):
    path.mkdir()
    (path / "model.mil").write_text(text)
    if metadata is not None:
        (path / "metadata.json").write_text(metadata)
    return path


BLOB = 'x = tensor<fp32, [2]>(BLOBFILE(path = string("{}"), offset = uint64({})))'
WRONG = {
    "no program": ("hello", "line 1, column 1: expected 'program' at the beginning of a program, found 'hello'"),
    "empty": ("", "line 1, column 1: expected 'program' .* found the end of the text"),
    "cut": (HEAD + "    tensor<fp32, [2]> y = relu(x = ", "line 4, column 36: expected a value .* the end of the text"),
    "no semicolon": (HEAD + Y[:-1] + TAIL, "line 5, column 3: expected ';' after an operation, found '}'"),
    "type": (HEAD + Y.replace("fp32", "fp33") + TAIL, "line 4, column 5: fp33 is no type of tensor elements"),
    "size": (HEAD + Y.replace("[2]", "[-2]") + TAIL, "line 4, column 5: expected a size or [?], found '-2'"),
    "many sizes": (HEAD + Y.replace("[2]", str([1] * 99)) + TAIL, "a tensor has 99 dimensions"),
    "huge size": (HEAD + Y.replace("[2]", f"[{2**64}]") + TAIL, "expected a size or [?]"),
    "operand twice": (HEAD + Y.replace("x = x", "x = x, x = x") + TAIL, "the operand x is given twice"),
    "row": (HEAD + Y.replace("x = x", "x = tensor<fp32, [2]>([1])") + TAIL, "a row of 1 values stands where .* says 2"),
    "parts": (HEAD + Y.replace("x = x", "x = tensor<fp32, [2, 1]>([[1]])") + TAIL, "a tensor of 1 parts .* says 2"),
    "number": (HEAD + Y.replace("x = x", "x = tensor<fp32, [1]>([0x1q])") + TAIL, "'0x1q' is no value of type fp32"),
    "underscore": (HEAD + Y.replace("x = x", "x = int32(1_0)") + TAIL, "'1_0' is no value of type int32"),
    "range": (HEAD + Y.replace("x = x", "x = int8(128)") + TAIL, "the value 128 does not fit int8"),
    "fp16 range": (HEAD + Y.replace("x = x", "x = fp16(70000)") + TAIL, "the value 70000 does not fit fp16"),
    "fp64 range": (HEAD + Y.replace("x = x", "x = fp64(0x1p99999)") + TAIL, "is no value of type fp64"),
    "bool": (HEAD + Y.replace("x = x", "x = bool(maybe)") + TAIL, "'maybe' is no value of type bool"),
    "open string": (HEAD + Y.replace("x = x", 'x = string("a)') + TAIL, "expected a string in double quotes"),
    "function twice": (HEAD + Y + TAIL[:-3] + HEAD[15:], "line 5, column 23: the function main is defined twice"),
    "no functions": ("program(1.0)\n{\n}", "has no functions"),
    "text behind": (HEAD + Y + TAIL + "func", "line 7, column 1: expected the end of the text, found 'func'"),
    "cycle": (HEAD + Y.replace("x = x", "x = y") + TAIL, "uses 'y' before anything computes it"),
    "no value": (HEAD + TAIL, "returns 'y', which nothing computes"),
    "no operation": (HEAD + Y.replace("relu", "frobnicate") + TAIL, "op frobnicate 'y' .* is not supported"),
    "constant without value": (HEAD + Y.replace("relu(x = x)", "const()") + TAIL, "constant 'y' has no value"),
    "constant of another type": (
        HEAD + Y.replace("relu(x = x)", "const()[val = tensor<fp32, [1]>([1])]") + TAIL,
        r"constant 'y' is declared as fp32 \[2\], but its value is fp32 \[1\]",
    ),
    "open constant": (
        HEAD + Y.replace("relu(x = x)", "const()[val = tensor<fp32, [?]>([1, 2])]") + TAIL,
        "constant 'y' has a size that is not known",
    ),
    "deep types": (HEAD.replace("tensor<fp32, [2]> x", "list<" * 5000), "types are nested more than 32 deep"),
    "deep blocks": (HEAD + "tensor<fp32, [2]> y = cond()({" * 5000, "expected a type"),
    "very deep blocks": (HEAD + "tensor<fp32, [2]> y = cond(){" * 5000, "blocks are nested more than 32 deep"),
    "deep values": (HEAD + f"relu(x = {'tuple<' * 30}int32{'>' * 30}({'(' * 5000}", "expected a value of type int32"),
    "outside": (
        HEAD + Y.replace("x = x", BLOB.format("@model_path/../w", 0)) + TAIL,
        "names a file outside itself",
    ),
    "absolute": (
        HEAD + Y.replace("x = x", BLOB.format("/etc/passwd", 0)) + TAIL,
        "their names must begin with @model_path/",
    ),
    "negative offset": (
        HEAD + Y.replace("x = x", BLOB.format("@model_path/w", -1)) + TAIL,
        "the value -1 does not fit uint64",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_texts(name, tmp_path):
    text, message = WRONG[name]
    folder = folder_of(tmp_path / "m.mlmodelc", text)
    with pytest.raises(ExecuteError, match=message) as found:
        Program(folder).predict({"x": np.zeros(2, np.float32)})
    assert "\n" not in str(found.value)


def seconds(text):
    start = time.process_time()
    with contextlib.suppress(ExecuteError):
        parse_program(text, "text", new_model().mlProgram)
    return time.process_time() - start


def test_megabytes_of_text_take_a_second():
    lines = "".join(
        f"tensor<fp16, [1, 640, 1, 375]> v{i} = conv(dilations = d, groups = g, pad = p, weight = w{i}, x = x)"
        f'[name = tensor<string, []>("op_{i}")];\n'
        f'tensor<fp16, [640, 640]> w{i} = const()[name = tensor<string, []>("w{i}"), val = tensor<fp16, [640, 640]>'
        f'(BLOBFILE(path = tensor<string, []>("@model_path/weights/weight.bin"), offset = tensor<uint64, []>({i})))];\n'
        for i in range(5000)
    )
    text = f"{HEAD}{lines}{TAIL}"
    assert len(text) > 1.5e6
    assert seconds(text) < 1.5


@pytest.mark.parametrize(
    "piece",
    [
        "[ ",
        "[1,",
        '"\\',
        "tensor<",
        "list<",
        "tensor<fp16, [",
        "-",
        "1.",
        "(",
        "x = int32(",
        "]",
        "a" * 64,
        "[a ",
        "\n",
    ],
)
def test_no_text_takes_more_than_linear_time(piece):
    start = HEAD + "tensor<fp32, [2]> y = relu(x = tensor<fp32, [2]>("
    assert seconds(start + piece * (1_000_000 // len(piece))) < 2
    assert seconds(piece * (1_000_000 // len(piece))) < 2
