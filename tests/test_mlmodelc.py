"""Compiled models: programs in text form against the packages they come from, real files, and what is refused."""

import numpy as np
import pytest
import torch
from execute_helpers import case_inputs, convert_torch, coremltools, write_cases
from mil_text_writer import compile_package
from shared_files import shared
from test_execute_ops import FAMILIES as PLAIN
from test_execute_products import FAMILIES as PRODUCTS
from test_mlmodelc_text import HEAD, TAIL, Y, folder_of
from torch import nn

from anemone.compress.spec import LutSpec
from anemone.errors import ExecuteError
from anemone.execute import Program
from anemone.execute.proto import new_model
from anemone.execute.text.parser import parse_program

coremltools()
DIALECTS = pytest.mark.parametrize("old", [False, True], ids=["plain scalars", "scalars as tensors"])


def inputs_of(program, function, rng, rows=None):
    """Random inputs of a function; ``rows`` chooses among enumerated shapes."""
    found = {}
    for name, spec in program.functions[function].inputs.items():
        shape = spec.shapes[rows % len(spec.shapes)] if spec.shapes and rows is not None else spec.shape
        whole = spec.dtype.startswith("int")
        found[name] = rng.integers(0, 8, shape).astype(np.int32) if whole else rng.standard_normal(shape)
    return found


def assert_same(package, folder):
    """Every function of both gives the same bits, twice, the state included."""
    one, other = Program(package), Program(folder)
    assert one.functions == other.functions
    assert (one.default_function, one.metadata) == (other.default_function, other.metadata)
    states = one.new_state(), other.new_state()
    rng = np.random.default_rng(3)
    for function in one.functions:
        for step in range(2):
            inputs = inputs_of(one, function, rng, step)
            wanted = one.predict(inputs, states[0], function)
            got = other.predict(inputs, states[1], function)
            assert list(got) == list(wanted)
            for name, value in wanted.items():
                assert got[name].dtype == value.dtype
                np.testing.assert_array_equal(got[name], value)
    for name in states[0]:
        assert states[0][name].any()
        np.testing.assert_array_equal(states[0][name], states[1][name])


def assert_same_program(package, folder):
    """The text becomes the very messages that the package holds."""
    wanted = coremltools().utils.load_spec(str(package)).mlProgram
    model = new_model()
    parse_program((folder / "model.mil").read_text(), "model.mil", model.mlProgram)
    got = type(wanted).FromString(model.mlProgram.SerializeToString())
    assert set(got.functions) == set(wanted.functions)
    for name, function in wanted.functions.items():
        assert got.functions[name].inputs == function.inputs
        assert got.functions[name].opset == function.opset
        assert got.functions[name].block_specializations == function.block_specializations


def test_real_argmax():
    program = Program(shared("models/mlmodelc/Argmax.mlmodelc"))
    logits = np.random.default_rng(0).standard_normal(1025).astype(np.float16)
    result = program.predict({"logits": logits})
    assert result["index"].tolist() == [int(np.argmax(logits))]
    assert result["score"].tolist() == [logits.max()]
    assert (result["index"].dtype, result["score"].dtype) == (np.int32, np.float16)
    assert program.functions["main"].outputs["score"].shape == (1,)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 5), (1, 2048, 7), (1, 2, 2048)])
def test_real_transpose(shape):
    program = Program(shared("models/mlmodelc/TransposeEncoder.mlmodelc"))
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float16)
    np.testing.assert_array_equal(program.predict({"x": x})["var_4"], x.transpose(0, 2, 1))


def test_ranges_of_the_program_are_kept():
    program = Program(shared("models/mlmodelc/TransposeEncoder.mlmodelc"))
    with pytest.raises(ExecuteError, match=r"takes shape \[1, 1\.\.2048, 1\.\.2048\], got \[1, 2049, 1\]"):
        program.predict({"x": np.zeros((1, 2049, 1), np.float16)})


@DIALECTS
@pytest.mark.parametrize("bits", [None, 4, 6])
def test_own_bundles(bits, old, workshop, tmp_path):
    lut = LutSpec(bits, 8) if bits else None
    recipe = {"lut_embeddings": None, "lut_ffn": lut, "lut_lmhead": lut, "head_split": 2}
    bundle = workshop.bundle(workshop.checkpoint("llama"), **recipe)
    packages = sorted(bundle.glob("*.mlpackage"))
    assert len(packages) >= 3
    for package in packages:
        folder = compile_package(package, tmp_path / f"{package.stem}.mlmodelc", old)
        assert_same(package, folder)
        assert_same_program(package, folder)
    assert {len(Program(package).functions) for package in packages} >= {1, 3}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        first, second = torch.split(self.head(y), [4, 6], 1)
        return torch.softmax(first, -1), second.tanh() - torch.inf * (second > 100)


@DIALECTS
@pytest.mark.parametrize("target", ["iOS15", "iOS16", "iOS17", "iOS18"])
def test_traced_net(target, old, tmp_path):
    ct = coremltools()
    options = {"minimum_deployment_target": getattr(ct.target, target)}
    if target in ("iOS15", "iOS16"):
        options["inputs"] = [ct.TensorType("x", shape=(1, 3, ct.RangeDim(4, 16, default=8), 8))]
    package = convert_torch(Net(), (torch.zeros(1, 3, 8, 8),), tmp_path / "n.mlpackage", "FLOAT16", **options)
    folder = compile_package(package, tmp_path / "n.mlmodelc", old)
    assert_same(package, folder)
    assert_same_program(package, folder)


@pytest.mark.parametrize("target", ["iOS16", "iOS18"])
@pytest.mark.parametrize("kind", ["palettised", "quantised", "pruned"])
def test_compressed_net(kind, target, tmp_path):
    ct = coremltools()
    import coremltools.optimize.coreml as cto

    options = {"minimum_deployment_target": getattr(ct.target, target)}
    package = convert_torch(Net(), (torch.zeros(1, 3, 8, 8),), tmp_path / "n.mlpackage", "FLOAT16", **options)
    change, config = {
        "palettised": (cto.palettize_weights, cto.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=0)),
        "quantised": (cto.linear_quantize_weights, cto.OpLinearQuantizerConfig(weight_threshold=0)),
        "pruned": (cto.prune_weights, cto.OpMagnitudePrunerConfig(target_sparsity=0.5, weight_threshold=0)),
    }[kind]
    model = change(ct.models.MLModel(str(package), skip_model_load=True), cto.OptimizationConfig(config))
    model.save(str(tmp_path / "c.mlpackage"))
    folder = compile_package(tmp_path / "c.mlpackage", tmp_path / "c.mlmodelc", old=target == "iOS16")
    assert "constexpr_" in (folder / "model.mil").read_text()
    assert_same(tmp_path / "c.mlpackage", folder)
    assert_same_program(tmp_path / "c.mlpackage", folder)


@pytest.mark.parametrize("family", [*PLAIN, *PRODUCTS])
def test_programs_of_every_kind_of_operation(family, tmp_path):
    cases = {**PLAIN, **PRODUCTS}[family]
    package = write_cases(tmp_path / "c.mlpackage", cases)
    folder = compile_package(package, tmp_path / "c.mlmodelc", metadata=False)
    assert_same_program(package, folder)
    inputs = case_inputs(cases)
    wanted, got = Program(package).predict(inputs), Program(folder).predict(inputs)
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)


def test_nested_blocks(tmp_path):
    ct = coremltools()
    from coremltools.converters.mil.mil import Builder as mb

    @mb.program(input_specs=[mb.TensorSpec((1,)), mb.TensorSpec((1,))])
    def program(a, b):
        def body(i, x):
            inner = mb.cond(
                pred=mb.squeeze(x=mb.less(x=x, y=b)), _true_fn=lambda: mb.add(x=x, y=x), _false_fn=lambda: x
            )
            return mb.add(x=i, y=1.0), inner

        return mb.while_loop(_cond=lambda i, x: mb.squeeze(x=mb.less(x=i, y=4.0)), _body=body, loop_vars=(a, b))

    model = ct.convert(program, convert_to="mlprogram", skip_model_load=True)
    model.save(str(tmp_path / "loop.mlpackage"))
    folder = compile_package(tmp_path / "loop.mlpackage", tmp_path / "loop.mlmodelc")
    assert (folder / "model.mil").read_text().count("} -> (") >= 4
    assert_same_program(tmp_path / "loop.mlpackage", folder)


SPELLINGS = """program(1)
{ func main<CoreML8>(tensor<fp32,[2, 3]> x) {
  tensor<fp32, [2,3]> w = const()[val=tensor<fp32, [2, 3]>([[0x1p-1, -0x1.8p+1, 0X1P0], [1e-3, .5, 4]])];
  fp32 one = const()[name=string("one"), val=fp32(1)] ;
  tensor<bool, [1, 2]> flags = const()[val = tensor<bool, [1, 2]>([[true,
     false]])];
  tensor<fp32, [2, 3]> y = add(x=x, y=w);
  tensor<fp32, [2, 3]> z = mul(x = y, y = tensor<fp32, []>(-inf))[];
  tensor<fp32, [0]> none = const()[val = tensor<fp32, [0]>([])];
  tensor<fp32, [2, 3]> u = maximum(x = y, y = one)[
     note = list<string, 2>(["a, b", "\\"c\\""]), more = dict<string, int32>({})];
  } -> (y, z, u);
}
"""


def test_spellings(tmp_path):
    program = Program(folder_of(tmp_path / "m.mlmodelc", SPELLINGS))
    x = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
    result = program.predict({"x": x})
    y = x + np.array([[0.5, -3, 1], [1e-3, 0.5, 4]], np.float32)
    np.testing.assert_array_equal(result["y"], y)
    np.testing.assert_array_equal(result["z"], y * -np.inf)
    np.testing.assert_array_equal(result["u"], np.maximum(y, 1))


ENUMERATED = """program(1.3)
{
    func main<ios17>(tensor<fp32, [?]> input) [FlexibleShapeInformation = tuple<
        tuple<string, dict<string, tensor<int32, [?]>>>, tuple<string, dict<string, dict<string, tensor<int32, [?]>>>>>
        ((("DefaultShapes", {{"input", [4]}}),
        ("EnumeratedShapes", {{"5", {{"input", [1]}}}, {"6", {{"input", [2]}}}, {"9", {{"input", [4]}}}})))] {
            tensor<fp32, [?]> output = relu(x = input);
        } -> (output);
}"""


def test_enumerated_shapes_of_the_program(tmp_path):
    program = Program(folder_of(tmp_path / "m.mlmodelc", ENUMERATED))
    spec = program.functions["main"].inputs["input"]
    assert (spec.shape, spec.shapes) == ((4,), ((1,), (2,), (4,)))
    assert program.predict({"input": np.array([-1, 2], np.float32)})["output"].tolist() == [0, 2]
    with pytest.raises(ExecuteError, match=r"takes shape \[1\] or \[2\] or \[4\], got \[3\]"):
        program.predict({"input": np.zeros(3, np.float32)})


def test_optional_inputs_come_from_the_metadata(tmp_path):
    text = SPELLINGS.replace("[FlexibleShapeInformation", "")
    metadata = '[{"inputSchema": [{"name": "x", "type": "MultiArray", "isOptional": "1"}], "version": "2"}]'
    program = Program(folder_of(tmp_path / "m.mlmodelc", text, metadata))
    assert program.predict({})["y"][0].tolist() == [0.5, -3, 1]


def test_damaged_metadata(tmp_path):
    for number, (metadata, message) in enumerate(
        [("{", "metadata.json is damaged"), ("[[]]", "no description of a model"), ("[" * 99999, "is damaged")]
    ):
        with pytest.raises(ExecuteError, match=message):
            Program(folder_of(tmp_path / f"{number}.mlmodelc", HEAD + Y + TAIL, metadata))


def save_spec(path, kind):
    ct = coremltools()
    spec = ct.proto.Model_pb2.Model(specificationVersion=4)
    getattr(spec, kind).SetInParent()
    path.write_bytes(spec.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("neuralNetwork", "a neural network, the format before ML Programs"),
        ("pipelineClassifier", "a pipeline of several"),
    ],
)
def test_other_models(kind, what, tmp_path):
    with pytest.raises(ExecuteError, match=f"m.mlmodel holds {what}.*; only ML Programs can be executed"):
        Program(save_spec(tmp_path / "m.mlmodel", kind))


def test_bare_files(tmp_path, workshop):
    with pytest.raises(ExecuteError, match=r"runs only with its weights: give the \.mlpackage folder"):
        Program(save_spec(tmp_path / "m.mlmodel", "mlProgram"))
    (tmp_path / "m.mil").write_text(HEAD)
    with pytest.raises(ExecuteError, match="give the folder that holds it"):
        Program(tmp_path / "m.mil")
    (tmp_path / "m.bin").write_text("")
    with pytest.raises(ExecuteError, match=r"give a \.mlpackage or \.mlmodelc folder"):
        Program(tmp_path / "m.bin")
    with pytest.raises(ExecuteError, match="no such folder"):
        Program(tmp_path / "absent.mlmodelc")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("model0/model.mil", "holds a pipeline of several models; .*give one of its parts, such as .*model0"),
        ("model.espresso.net", "holds a neural network, the format before ML Programs"),
        ("coremldata.bin", r"has no model\.mil"),
    ],
)
def test_other_compiled_models(entry, message, tmp_path):
    path = tmp_path / "m.mlmodelc" / entry
    path.parent.mkdir(parents=True)
    path.write_text("")
    with pytest.raises(ExecuteError, match=message):
        Program(tmp_path / "m.mlmodelc")
