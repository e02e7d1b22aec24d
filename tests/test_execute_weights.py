"""Stored and compressed weights, decoded as coremltools decodes them."""

import numpy as np
import pytest
import torch
from execute_helpers import convert_torch, coremltools, only, save
from torch import nn

from anemone.errors import ExecuteError
from anemone.execute import Program
from anemone.execute.blob import unpack
from anemone.execute.numerics import round_half, widen
from anemone.execute.stored import Plain

RNG = np.random.default_rng(11)
COVERS = {"const": "coremltools"} | dict.fromkeys(
    [
        "constexpr_lut_to_dense", "constexpr_lut_to_sparse", "constexpr_blockwise_shift_scale", "constexpr_cast",
        "constexpr_sparse_blockwise_shift_scale", "constexpr_sparse_to_dense", "constexpr_affine_dequantize",
    ],
    "coremltools",
)  # fmt: skip
coremltools()


def bits(count: int, *shape: int) -> np.ndarray:
    from coremltools.converters.mil.mil import types

    kind = types.type_mapping.string_to_nptype(f"uint{count}")
    return RNG.integers(0, 2**count, shape).astype(kind)


def half(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float16)


def int4(*shape: int) -> np.ndarray:
    from coremltools.converters.mil.mil import types

    return RNG.integers(-8, 8, shape).astype(types.type_mapping.string_to_nptype("int4"))


def palettised(mb):
    for count in (1, 2, 3, 4, 6, 8):
        index = bits(count, 16, 10) if count < 8 else RNG.integers(0, 256, (16, 10)).astype(np.uint8)
        yield mb.constexpr_lut_to_dense(indices=index, lut=half(1, 1, 2**count, 1))
        yield mb.constexpr_lut_to_dense(indices=index, lut=half(4, 1, 2**count, 1))
        yield mb.constexpr_lut_to_dense(indices=index, lut=half(2, 5, 2**count, 1))
    yield mb.constexpr_lut_to_dense(indices=bits(4, 8, 12, 1, 1), lut=half(2, 1, 1, 1, 16, 1))
    yield mb.constexpr_lut_to_dense(indices=bits(3, 6, 5), lut=half(3, 1, 8, 1))  # rows that end within a byte
    yield mb.constexpr_lut_to_dense(indices=bits(4, 6, 5), lut=half(3, 1, 16, 1))
    for axis in (0, 1, -1):
        yield mb.constexpr_lut_to_dense(indices=bits(2, 4, 6), lut=half(2, 1, 4, 3), vector_axis=np.int32(axis))
        yield mb.constexpr_lut_to_dense(indices=bits(4, 4, 6, 2), lut=half(1, 3, 2, 16, 2), vector_axis=np.int32(axis))
    yield mb.constexpr_lut_to_dense(indices=bits(4, 4, 6), lut=RNG.standard_normal((1, 1, 16, 1)).astype(np.float32))


def quantised(mb):
    for data in (
        RNG.integers(-128, 128, (8, 6)).astype(np.int8),
        int4(8, 6),
        RNG.integers(0, 256, (8, 6)).astype(np.uint8),
    ):
        yield mb.constexpr_blockwise_shift_scale(data=data, scale=half(8, 1))
        yield mb.constexpr_blockwise_shift_scale(data=data, scale=half(1, 1))
        offset = np.zeros((4, 3), data.dtype) + data.reshape(-1)[:12].reshape(4, 3)
        yield mb.constexpr_blockwise_shift_scale(data=data, scale=half(4, 3), offset=offset)
    wide = RNG.integers(-128, 128, (8, 6)).astype(np.int8)
    yield mb.constexpr_blockwise_shift_scale(data=wide, scale=half(2, 2).astype(np.float32))


def sparse(mb):
    mask = bits(1, 8, 12)
    count = int(np.count_nonzero(mask))
    yield mb.constexpr_sparse_to_dense(nonzero_data=half(count), mask=mask)
    data_mask, nonzero = mb.constexpr_lut_to_sparse(
        indices_mask=mask, indices_nonzero_data=bits(4, count), lut=half(2, 1, 16, 1)
    )
    yield mb.constexpr_sparse_to_dense(nonzero_data=nonzero, mask=data_mask)
    data_mask, nonzero = mb.constexpr_sparse_blockwise_shift_scale(
        data_mask=mask, nonzero_data=RNG.integers(-128, 128, count).astype(np.int8), scale=half(8, 1)
    )
    yield mb.constexpr_sparse_to_dense(nonzero_data=nonzero, mask=data_mask)


def nested(mb):
    table = RNG.integers(-128, 128, (2, 1, 16, 1)).astype(np.int8)
    yield mb.constexpr_blockwise_shift_scale(
        data=mb.constexpr_lut_to_dense(indices=bits(4, 8, 12), lut=table), scale=half(8, 1)
    )
    index, scale = bits(4, 8, 12), half(1, 1, 1, 1)
    var = mb.constexpr_lut_to_dense(indices=index, lut=mb.constexpr_blockwise_shift_scale(data=table, scale=scale))
    values = (table.astype(np.float16) * scale).reshape(2, 16)  # coremltools itself does not decode quantised tables
    yield var, np.take_along_axis(np.repeat(values, 4, axis=0), index.astype(np.int64), axis=1)


def old_forms(mb):
    """iOS16's constexpr operations, whose operands are attributes."""
    from coremltools.optimize._utils import pack_elements_into_bits

    for count in (1, 2, 4, 6, 8):
        index = RNG.integers(0, 2**count, 7 * 9).astype(np.uint8)
        yield mb.constexpr_lut_to_dense(
            indices=pack_elements_into_bits(index, count), lut=half(2**count), shape=np.array([7, 9], np.uint32)
        )
    data = RNG.integers(-128, 128, (6, 5)).astype(np.int8)
    yield mb.constexpr_affine_dequantize(quantized_data=data, zero_point=np.int8(3), scale=np.float16(0.1), axis=0)
    yield mb.constexpr_affine_dequantize(quantized_data=data, zero_point=data[0], scale=half(5), axis=-1)
    mask = RNG.integers(0, 2, 63).astype(np.uint8)
    yield mb.constexpr_sparse_to_dense(
        nonzero_data=half(int(mask.sum())), mask=np.packbits(mask, bitorder="little"), shape=np.array([7, 9], np.uint32)
    )
    yield mb.constexpr_cast(source_val=half(3, 4), output_dtype="fp32")


def write_constants(path, make, opset):
    """A package that adds each constant to an input; also what coremltools decodes, by value name."""
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, Program, types

    placeholder = mb.placeholder(shape=(1,), dtype=types.fp32)
    placeholder.name = placeholder.outputs[0].name = "x"
    program, wanted = Program(), {}
    with Function({"x": placeholder}, getattr(coremltools().target, opset)) as function:
        outputs = []
        for made in make(mb):
            var, value = made if isinstance(made, tuple) else (made, made.op.materialized_val_inference())
            wanted[var.name] = value
            outputs.append(mb.add(x=function.inputs["x"], y=mb.cast(x=var, dtype="fp32")))
        function.set_outputs(outputs)
    program.add_function("main", function)
    return save(program, path, opset), wanted


@pytest.mark.parametrize(
    ("make", "opset"),
    [(palettised, "iOS18"), (quantised, "iOS18"), (sparse, "iOS18"), (nested, "iOS18"), (old_forms, "iOS16")],
)
def test_constants_decode_as_coremltools_decodes(make, opset, tmp_path):
    path, wanted = write_constants(tmp_path / "constants.mlpackage", make, opset)
    program = Program(path)
    assert set(wanted) <= set(program.weight_names())
    for name, value in wanted.items():
        got = program.weight(name)
        assert got.dtype == value.dtype
        np.testing.assert_array_equal(got, value, err_msg=name)
    stored = program.graph("main").constants
    for name, value in wanted.items():  # rows on their own, as they are decoded when memory is short
        for start, stop in ((0, 1), (1, 3), (2, len(value))):
            np.testing.assert_array_equal(stored[name].wide_rows(start, stop), value[start:stop].astype(np.float32))
    results = program.predict({"x": np.zeros(1, np.float32)})
    for got, value in zip(results.values(), wanted.values(), strict=True):
        np.testing.assert_array_equal(got, value.astype(np.float32))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(32, 64, 1)
        self.linear = nn.Linear(64, 48)

    def forward(self, x):
        return self.linear(self.conv(x).squeeze(2).transpose(1, 2))


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("net") / "net.mlpackage"
    return convert_torch(Net(), (torch.zeros(1, 32, 1, 4),), path, "FLOAT16")


def optimised(kind, model):
    cto = coremltools().optimize.coreml
    if kind == "int8":
        config = cto.OptimizationConfig(
            global_config=cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=0)
        )
        return cto.linear_quantize_weights(model, config)
    options = {"lut4 groups": {"nbits": 4, "granularity": "per_grouped_channel", "group_size": 8}, "lut6": {"nbits": 6}}
    how = cto.OpPalettizerConfig(mode="uniform", weight_threshold=0, **options[kind])
    return cto.palettize_weights(model, cto.OptimizationConfig(global_config=how))


@pytest.mark.parametrize("kind", ["lut4 groups", "lut6", "int8"])
def test_weights_from_coremltools_optimize(kind, net, tmp_path):
    import contextlib
    import io

    ct = coremltools()
    with contextlib.redirect_stderr(io.StringIO()):
        model = optimised(kind, ct.models.MLModel(str(net), skip_model_load=True))
        model.save(str(tmp_path / "small.mlpackage"))
        dense = ct.optimize.coreml.decompress_weights(model)
        dense.save(str(tmp_path / "dense.mlpackage"))
    small, plain = Program(tmp_path / "small.mlpackage"), Program(tmp_path / "dense.mlpackage")
    compressed = [n for n in small.weight_names() if small.weight(n).ndim > 1]
    restored = [n for n in plain.weight_names() if plain.weight(n).ndim > 1]
    assert len(compressed) == len(restored) == 2
    for a, b in zip(compressed, restored, strict=True):
        np.testing.assert_array_equal(small.weight(a), plain.weight(b))
    x = {"x": RNG.standard_normal((1, 32, 1, 4)).astype(np.float16)}
    np.testing.assert_array_equal(*(only(p.predict(x)) for p in (small, plain)))


def test_streamed_weights_give_the_same_results(net, monkeypatch):
    from anemone.execute import weights

    x = {"x": RNG.standard_normal((1, 32, 1, 4)).astype(np.float16)}
    kept = only(Program(net, weights="keep", numerics="float32").predict(x))
    monkeypatch.setattr(weights, "_TILE", 512)
    streaming = Program(net, weights="stream", numerics="float32")
    np.testing.assert_allclose(only(streaming.predict(x)), kept, rtol=1e-5, atol=1e-6)


def test_products_with_streamed_matrices(monkeypatch):
    from anemone.execute import weights

    monkeypatch.setattr(weights, "_TILE", 100)
    values = RNG.standard_normal((30, 12)).astype(np.float16)
    streamed = weights.Matrix(Plain(values.reshape(-1), "fp16", (30, 12)), None)
    assert len(list(streamed.tiles())) > 2
    wide = values.astype(np.float64)
    for got, wanted in (
        (streamed.times(x := RNG.standard_normal((12, 5)).astype(np.float32)), wide @ x),
        (streamed.after(x := RNG.standard_normal((2, 7, 30)).astype(np.float32)), x @ wide),
        (streamed.transposed_after(x := RNG.standard_normal((2, 7, 12)).astype(np.float32)), x @ wide.T),
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("encoding", ["fp16", "lut4"])
def test_rows_of_a_large_table(encoding, tmp_path):
    """The ids that a cast to 16 bits would break, from a table that is never decoded as a whole."""
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, types
    from coremltools.converters.mil.mil import Program as MilProgram

    ids = np.array([[0, 32768, 65535, 65536, -1, 69999]], np.int32)
    table = half(70000, 4)
    placeholder = mb.placeholder(shape=ids.shape, dtype=types.int32)
    placeholder.name = placeholder.outputs[0].name = "ids"
    program = MilProgram()
    with Function({"ids": placeholder}, coremltools().target.iOS18) as function:
        if encoding == "lut4":
            var = mb.constexpr_lut_to_dense(indices=bits(4, 70000, 4), lut=half(8750, 1, 16, 1))
            table = var.op.materialized_val_inference()
        else:
            var = mb.const(val=table)
        function.set_outputs([mb.gather(x=var, indices=function.inputs["ids"], axis=0, name="rows")])
    program.add_function("main", function)
    loaded = Program(save(program, tmp_path / "table.mlpackage"))
    np.testing.assert_array_equal(loaded.predict({"ids": ids})["rows"], table[ids])
    assert not loaded._weights._decoded
    with pytest.raises(ExecuteError, match="reach outside the 70000 rows"):
        loaded.predict({"ids": np.array([[0, 1, 2, 3, 4, 70000]])})


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
def test_unpack_any_range(count):
    values = RNG.integers(0, 2**count, 83).astype(np.uint8)
    packed = np.packbits(
        np.unpackbits(values[:, None], axis=1, bitorder="little")[:, :count].reshape(-1), bitorder="little"
    )
    for start in range(20):
        for size in (0, 1, 7, 8, 33, 83 - start):
            np.testing.assert_array_equal(unpack(packed, count, start, size), values[start : start + size])


def test_rounding_equals_numpys():
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    edges = every.astype(np.float32)
    with np.errstate(all="ignore"):
        between = edges[:-1] + (edges[1:] - edges[:-1]) / 2
        near = [np.nextafter(between, np.float32(s * np.inf)) for s in (-1, 1)]
        random = RNG.integers(0, 2**32, 1 << 18, dtype=np.uint64).astype(np.uint32).view(np.float32)
        values = np.concatenate([edges, between, *near, random])
        wanted = values.astype(np.float16).astype(np.float32)
        got = round_half(values)
    same = (got.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(got) & np.isnan(wanted))
    assert same.all()
    np.testing.assert_array_equal(widen(every), edges)


def test_damaged_weight_files_are_refused(net, tmp_path):
    import shutil

    copy = tmp_path / "copy.mlpackage"
    shutil.copytree(net, copy)
    weights = next(copy.rglob("weight.bin"))
    content = weights.read_bytes()
    x = {"x": np.zeros((1, 32, 1, 4), np.float16)}
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ExecuteError, match=r"weight\.bin"):
        Program(copy).predict(x)
    weights.write_bytes(b"\0" * len(content))
    with pytest.raises(ExecuteError, match="no record"):
        Program(copy).predict(x)
    weights.unlink()
    with pytest.raises(ExecuteError, match="does not exist"):
        Program(copy).predict(x)
