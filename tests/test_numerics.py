"""The ane mode: sums measured on hardware come out as measured, and each rule does what its source says."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("coremltools")

from execute_helpers import Case, Numbers, case_inputs, expected, of_torch, only, write_cases

from anemone.ane.numerics import CHIPS, HAZARDS, RULES, chip_rules
from anemone.errors import ExecuteError
from anemone.execute import Program
from anemone.execute.ane_products import Accumulation, Packed, product
from anemone.execute.modes import numerics_mode

KEEP, FLUSH = Accumulation(flush=False), Accumulation(flush=True)
INF = np.inf


def half(*values: float) -> np.ndarray:
    return np.array(values, np.float16)


def run(folder: Path, case: Case, chip: str = "m1") -> np.ndarray:
    package = folder / "case.mlpackage"
    if not package.exists():
        write_cases(package, [case])
    return only(Program(package, numerics="ane", chip=chip).predict(case_inputs([case])))


def dot(folder: Path, values: np.ndarray, chip: str = "m1") -> float:
    """The values times ones, by matmul."""
    operands = {"x": np.asarray(values, np.float16)[None], "y": np.ones((len(values), 1), np.float16)}
    return float(run(folder, Case("matmul", operands), chip).item())


# Sums that were measured on an M1 (ane-guide).


def test_sixteen_thousand_ones(tmp_path):
    assert dot(tmp_path, np.ones(16000)) == 16000


def test_ones_after_4096(tmp_path):
    """Exact is 5120; fp16 added one by one stays at 4096."""
    assert dot(tmp_path, [4096, *[1] * 1024]) == 5116


def test_2049_ones(tmp_path):
    assert dot(tmp_path, np.ones(2049)) == 2048


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1)])
@pytest.mark.parametrize(
    ("size", "survivors"),
    [(1024, 16), (3000, 16), (4090, 16), (4096, 4), (8000, 4), (16000, 4), (30000, 4)],
)
def test_ones_that_survive_cancellation(tmp_path, size, survivors, order):
    triple = np.array([size, -size, 1])[list(order)]
    assert dot(tmp_path, np.tile(triple, 16)) == survivors


@pytest.mark.parametrize(
    ("depth", "tiles", "wide"), [(1024, 2.18e-4, 2.14e-4), (5120, 2.81e-4, 1.89e-4), (17408, 2.91e-4, 2.35e-4)]
)
def test_error_of_ordinary_sums(depth, tiles, wide):
    """Relative L2 error of Gaussian dot products as tabulated (one draw each): by tiles, and with fp32 sums."""
    rng = np.random.default_rng(depth)
    w, x = (rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in ((500, depth), (depth, 4)))
    exact = w.astype(np.float64) @ x.astype(np.float64)

    def error(sums: np.ndarray) -> float:
        return float(np.linalg.norm(sums.astype(np.float16) - exact) / np.linalg.norm(exact))

    ours, plain = error(product(Packed(w, KEEP), x)), error(w @ x)
    assert ours == pytest.approx(tiles, rel=0.25)
    assert plain == pytest.approx(wide, rel=0.25)
    assert 1 < ours / plain < 1.5


# The rule itself.


def rounded(x: np.float32, larger: np.float32) -> np.float32:
    """x to a multiple of the step of 12 significant bits at the exponent of ``larger``, half to even."""
    if larger == 0:
        return x
    step = 2.0 ** (np.floor(np.log2(abs(float(larger)))) - 11)
    return np.float32(np.rint(float(x) / step) * step)


def by_the_rule(w: np.ndarray, x: np.ndarray) -> np.float32:
    total = np.float32(0)
    for start in range(0, len(w), 4):
        tile = np.float32(0)
        for a, b in zip(w[start : start + 4], x[start : start + 4], strict=True):
            p = np.float32(a * b)
            tile = rounded(np.float32(tile + p), max(tile, p, key=abs))
        total = np.float32(total + tile)
    return total


@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 7, 2), (1, 130, 1), (5, 64, 3), (2, 1, 4)])
def test_product_follows_the_rule_to_the_bit(rows, depth, columns):
    rng = np.random.default_rng(depth)
    spread = 2.0 ** rng.integers(-6, 6, depth)
    w = (rng.standard_normal((rows, depth)) * spread).astype(np.float16).astype(np.float32)
    x = rng.standard_normal((depth, columns)).astype(np.float16).astype(np.float32)
    sums = [[by_the_rule(row, column) for column in x.T] for row in w]
    assert np.array_equal(product(Packed(w, KEEP), x), sums)


def test_a_row_has_the_same_bits_in_every_batch():
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in ((1100, 90), (90, 1030)))
    whole = product(Packed(w, FLUSH), x)
    assert np.array_equal(whole[:, :1], product(Packed(w, FLUSH), x[:, :1]))
    assert np.array_equal(whole[1050:1051, 7:9], product(Packed(w[1050:1051], FLUSH), x[:, 7:9]))


def test_subnormal_operands_and_products_are_lost_by_chip(tmp_path):
    small = Case("matmul", {"x": half(2.0**-8)[None], "y": half(2.0**-8)[None]})
    lost = {chip: float(run(tmp_path, small, chip).item()) == 0 for chip in CHIPS}
    assert lost == {"m1": True, "m2": True, "m3": True, "m4": True, "m5": False, "m6": True}


def test_elementwise_operations_keep_subnormals(tmp_path):
    assert run(tmp_path, Case("mul", {"x": half(2.0**-8), "y": half(2.0**-8)})) == 2.0**-16


# Limits.


def test_matmul_is_infinite_from_32768_on_m1(tmp_path):
    assert dot(tmp_path / "a", [32752]) == 32752
    assert dot(tmp_path / "b", [30000, 2768]) == INF
    assert dot(tmp_path / "b", [30000, 2768], "m2") == 32768
    assert dot(tmp_path / "c", [-30000, -5008, 30000]) == -INF  # on the way
    assert dot(tmp_path / "c", [-30000, -5008, 30000], "m2") == -5008


@pytest.mark.parametrize(("taps", "result"), [(1, 40000), (2, INF)])
def test_only_convolutions_of_several_taps_have_the_limit(tmp_path, taps, result):
    weight = np.zeros((1, 1, 1, taps), np.float16)
    weight[..., 0] = 2
    x = np.full((1, 1, 1, taps), 20000, np.float16)
    assert run(tmp_path, Case("conv", {"x": x}, {"weight": weight, "pad_type": "valid"})).item() == result


@pytest.mark.parametrize(
    ("chip", "kept"), [("m1", [INF, -INF, 4092]), ("m2", [INF, -INF, 4092]), ("m3", [5000, -4096, 4092])]
)
def test_slices_of_the_last_axis(tmp_path, chip, kept):
    case = Case("slice_by_index", {"x": half(1, 5000, -4096, 4092)[None]}, {"begin": [0, 1], "end": [1, 4]})
    assert run(tmp_path, case, chip).tolist() == [kept]


def test_slices_from_the_start_and_of_other_axes_are_whole(tmp_path):
    x = half(5000, 1, 5000, 1).reshape(2, 2)
    for name, begin, end in (("a", [0, 0], [2, 1]), ("b", [1, 0], [2, 2])):
        got = run(tmp_path / name, Case("slice_by_index", {"x": x}, {"begin": begin, "end": end}))
        assert np.isfinite(got).all()


def test_the_second_part_of_a_split_is_such_a_slice(tmp_path):
    write_cases(tmp_path / "s.mlpackage", [Case("split", {"x": half(5000, 5000)[None]}, {"num_splits": 2, "axis": -1})])
    parts = Program(tmp_path / "s.mlpackage", numerics="ane:m1").predict({"c0_0": half(5000, 5000)[None]})
    assert [part.item() for part in parts.values()] == [5000, INF]


# Functions.


@pytest.mark.parametrize(
    ("kind", "x", "result"),
    [
        ("exp", half(11.0859, 11.1016), [65248, INF]),
        ("silu", half(0, 20, -20, INF), [-0.001259, 20, 0, INF]),
        ("softplus", half(0, 10, 11.5, INF), [np.log(2), 10, 0, 0]),
        ("gelu", half(0, 6), [-0.000543, 6]),
        ("log", half(0, -1, 1), [-45440, 0, 0]),
        ("sqrt", half(-1, 4), [0, 2]),
        ("rsqrt", half(-1, 4, -0.0), [0, 0.5, INF]),
        ("reduce_log_sum_exp", np.full(32, 7.7, np.float16), INF),
        ("reduce_log_sum_exp", np.full(32, 7.5, np.float16), 7.5 + np.log(32)),
        ("softmax", half(1000, 1, 2, 3), [1, 0, 0, 0]),
        ("relu", half(np.nan), [INF]),
    ],
)
def test_functions(tmp_path, kind, x, result):
    got = run(tmp_path, Case(kind, {"x": x}))
    np.testing.assert_allclose(got.astype(np.float64), np.reshape(result, got.shape), rtol=2e-3, atol=1e-6)


def test_silu_is_biased_for_small_inputs_only(tmp_path):
    """By 0.0013 near 0, which is 6 to 12 % of inputs of 0.02 to 0.04."""
    x = np.linspace(-8, 8, 321).astype(np.float16)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    error = run(tmp_path, Case("silu", {"x": x})) - exact
    assert np.abs(error[150:171] + 0.001259).max() < 3e-4
    assert np.abs(error[np.abs(x) > 7]).max() < 4e-3 * 8
    relative = np.abs(error / np.where(exact == 0, 1, exact))[(np.abs(x) >= 0.02) & (np.abs(x) <= 0.051)]
    assert relative.min() > 0.04
    assert relative.max() < 0.13


@pytest.mark.parametrize(
    ("kind", "x", "y", "result"),
    [
        ("sub", INF, INF, 0), ("mul", 0, INF, 0), ("real_div", 1, -0.0, INF), ("real_div", 0, 0, 0),
        ("add", 60000, 10000, INF), ("mul", 200, 300, 60000),
    ],
)  # fmt: skip
def test_infinities(tmp_path, kind, x, y, result):
    assert run(tmp_path, Case(kind, {"x": half(x), "y": half(y)})) == result


def test_m1_rounds_squares_before_it_sums_them(tmp_path):
    """A subnormal square loses digits."""
    tiny = np.full(1000, 2.0**-12.2, np.float16)
    case = Case("reduce_sum_square", {"x": tiny}, {"axes": [0], "keep_dims": True})
    sums = {c: float(run(tmp_path, case, c).item()) for c in ("m1", "m2")}
    exact = 1000 * float(tiny[0]) ** 2
    assert abs(sums["m2"] / exact - 1) < 2e-3
    assert abs(sums["m1"] / exact - 1) > 1e-2


# Layers give what torch gives, up to fp16.

N = Numbers(3)


def torch_conv(x, weight, bias, strides, pad, dilations, groups, pad_type):
    from torch.nn.functional import conv2d
    from torch.nn.functional import pad as padded

    around = (pad[2], pad[3], pad[0], pad[1])
    return of_torch(lambda x, w, b: conv2d(padded(x, around), w, b, strides, 0, dilations, groups))(x, weight, bias)


def torch_attention(query, key, value, attn_mask):
    from torch.nn.functional import scaled_dot_product_attention

    return of_torch(scaled_dot_product_attention)(query, key, value, attn_mask)


LAYERS = [
    Case("matmul", {"x": N.real(2, 1, 5, 9), "y": N.real(3, 9, 4)}),
    Case("matmul", {"x": N.real(2, 9, 5), "y": N.real(2, 4, 9)}, {"transpose_x": True, "transpose_y": True}),
    Case("matmul", {"x": N.real(2, 5, 9)}, {"y": N.real(9, 6)}, lambda x, y: x.astype(np.float64) @ y),
    Case("linear", {"x": N.real(2, 3, 5)}, {"weight": N.real(6, 5), "bias": N.real(6)}),
    Case("einsum", {"values": (N.real(2, 3, 4, 5), N.real(2, 5, 4, 6))}, {"equation": "bchw,bwhu->bchu"}),
    Case("conv", {"x": N.real(2, 4, 7, 9)}, {
        "weight": N.real(6, 2, 3, 2), "bias": N.real(6), "strides": [2, 1], "pad": [1, 0, 2, 1], "dilations": [1, 2],
        "groups": 2, "pad_type": "custom",
    }, torch_conv),
    Case("scaled_dot_product_attention", {
        "query": N.real(1, 2, 3, 8), "key": N.real(1, 2, 5, 8), "value": N.real(1, 2, 5, 4), "attn_mask": N.real(3, 5),
    }, {}, torch_attention),
]  # fmt: skip


@pytest.mark.parametrize("case", [case.typed(np.float16) for case in LAYERS], ids=lambda case: case.kind)
@pytest.mark.parametrize("chip", ["m1", "m5"])
def test_layers(tmp_path, case, chip):
    (truth,) = expected(case)
    got = run(tmp_path, case, chip)
    assert got.shape == truth.shape
    np.testing.assert_allclose(got.astype(np.float64), truth.astype(np.float64), rtol=3e-3, atol=6e-3)


def test_fp32_operations_are_left_alone(tmp_path):
    x, y = N.real(3, 50), N.real(50, 2)
    assert np.allclose(run(tmp_path, Case("matmul", {"x": x, "y": y})), x @ y, rtol=1e-6)


# The table.


def test_every_chip_has_every_rule_once():
    names = {rule.name for rule in RULES}
    assert all(set(chip_rules(chip)) == names for chip in CHIPS)
    assert all(rule.confidence in ("high", "medium", "low") and rule.source and rule.says for rule in RULES)
    assert all(hazard.severity in ("error", "warning") and hazard.instead for hazard in HAZARDS)


@pytest.mark.parametrize("name", ["ane:m9", "float16:m1", "fp16", "ane:"])
def test_unknown_modes(name):
    if name == "ane:":
        assert numerics_mode(name).name == "ane:m1"
        return
    with pytest.raises(ExecuteError, match="not known; choose one of"):
        numerics_mode(name)


def test_the_docs_have_every_rule():
    page = (Path(__file__).parents[1] / "docs/executor.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    documented = [(row[0], row[3], row[4], row[5]) for row in rows if len(row) == 6 and row[0] in chip_rules("m1")]
    assert documented == [(rule.name, rule.says, rule.source, rule.confidence) for rule in RULES]
