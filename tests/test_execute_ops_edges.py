"""Edges of the common operations: broadcasting, axes, masks, integer types, random slices and convolutions."""

import itertools

import numpy as np
import pytest
import torch
from execute_helpers import Case, Numbers, by, check, check_precisions, coremltools, exists, of_torch
from test_execute_products import conv

from anemone.errors import ExecuteError
from anemone.execute.compiler import compile_function
from anemone.execute.modes import numerics_mode
from anemone.execute.reader import Block, Function, Op, Var
from anemone.execute.stored import Plain
from anemone.execute.weights import Weights

coremltools()
NUMBERS = Numbers(25)
RNG, real, whole, truth = NUMBERS.rng, NUMBERS.real, NUMBERS.whole, NUMBERS.truth
F = torch.nn.functional

ARITHMETIC = ("add", "sub", "mul", "real_div", "floor_div", "mod", "maximum", "minimum")
COMPARISON = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
BROADCASTS = [((5,), (1,)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((2, 1, 3, 1, 2), (4, 1, 3, 1))]

BINARY = [
    *[
        Case(kind, {"x": real(*a, low=-4, high=4), "y": real(*b, low=0.5, high=4)})
        for kind in ARITHMETIC
        for a, b in BROADCASTS
    ],
    *[
        Case(kind, {"x": whole(*a, low=-9, high=9), "y": whole(*b, low=1, high=5)})
        for kind in (*ARITHMETIC[:3], *ARITHMETIC[4:], *COMPARISON)
        for a, b in BROADCASTS[1:3]
    ],
    *[Case("floor_div", {"x": real(4, 5, low=-9, high=9), "y": -real(5, low=1, high=4)})],
    Case("mod", {"x": whole(4, 5, low=-9, high=9), "y": -whole(5, low=1, high=4)}),
    *[Case(kind, {"x": truth(2, 1, 4), "y": truth(3, 1)}) for kind in ("logical_and", "logical_or", "logical_xor")],
    Case("pow", {"x": real(2, 3, low=-3), "y": np.array([2, 3, 0], np.float32)}),
    *[Case("select", {"cond": truth(2, 1, 4), "a": real(3, 1), "b": real(2, 3, 4)})],
]

STEEP = np.array([-200, -30, -12, -1e-3, 0, 1e-3, 12, 30, 60], np.float32)
EXTREME = [
    Case("softplus", {"x": STEEP}, {}, of_torch(F.softplus)),
    Case("sigmoid", {"x": STEEP}, {}, of_torch(torch.sigmoid)),
    Case("silu", {"x": STEEP}, {}, of_torch(F.silu)),
    Case("tanh", {"x": STEEP}, {}, of_torch(torch.tanh)),
    Case("erf", {"x": STEEP / 10}, {}, of_torch(torch.erf)),
    Case("softmax", {"x": STEEP[None]}, {"axis": -1}, of_torch(lambda x, axis: torch.softmax(x, axis))),
    Case("elu", {"x": STEEP}, {"alpha": np.float32(0.5)}, of_torch(lambda x, alpha: F.elu(x, float(alpha)))),
    Case("gelu", {"x": STEEP}, {"mode": "EXACT"}, of_torch(lambda x, mode: F.gelu(x))),
    Case("gelu", {"x": STEEP}, {"mode": "TANH_APPROXIMATION"}, of_torch(lambda x, mode: F.gelu(x, approximate="tanh"))),
    *[
        Case("prelu", {"x": real(2, 3, *rest)}, {"alpha": alpha},
             of_torch(lambda x, alpha: F.prelu(x, torch.from_numpy(np.asarray(alpha, np.float32)))))
        for rest, alpha in (((4,), np.full(3, 0.25, np.float32)), ((4, 5), real(3)), ((2, 4, 5), real(1).repeat(3)))
    ],
    Case("reduce_log_sum_exp", {"x": STEEP[None]}, {"axes": [-1]}, of_torch(lambda x, axes: torch.logsumexp(x, -1))),
    *[
        Case("round", {"x": np.arange(-3, 3.5, 0.5, dtype=np.float32)}, {}, of_torch(torch.round)),
        Case("sign", {"x": np.array([-2, -0.0, 0, 3], np.float32)}),
        Case("cast", {"x": np.array([-2.7, -0.5, 0.5, 2.7], np.float32)}, {"dtype": "int32"}),
        Case("cast", {"x": np.array([-2.5, 0, 0.5], np.float32)}, {"dtype": "bool"}),
    ],
]  # fmt: skip

OVER = (
    "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_l1_norm", "reduce_l2_norm",
    "reduce_sum_square", "reduce_log_sum", "reduce_log_sum_exp",
)  # fmt: skip
REDUCE = [
    *[
        Case(kind, {"x": real(2, 3, 1, 4, low=0.5)}, {"axes": axes, "keep_dims": keep})
        for kind in OVER
        for axes, keep in (([-1, 0], True), ([-2], False), ([1, 2, 3], False), ([0, 1, 2, 3], True))
    ],
    *[Case(f"reduce_{kind}", {"x": whole(3, 4)}, {"axes": [0]}) for kind in ("sum", "max", "min", "prod")],
    *[Case(kind, {"x": real(2, 5, 3)}, {"axis": a}) for kind in ("reduce_argmax", "reduce_argmin") for a in (0, -2)],
]  # fmt: skip


def axes_of(rank):
    return [int(a) for a in RNG.permutation(rank)]


SHAPE = [
    *[Case("transpose", {"x": real(*s)}, {"perm": axes_of(len(s))}) for s in ((3, 4), (2, 3, 4), (2, 1, 3, 4, 2))],
    *[Case("reshape", {"x": whole(2, 3, 4)}, {"shape": s}) for s in ([-1], [6, -1, 1], [2, 0, 0], [0, -1, 2])],
    *[Case("expand_dims", {"x": real(2, 3)}, {"axes": a}) for a in ([0], [-1], [1, 3], [0, -2])],
    *[Case("squeeze", {"x": real(1, 2, 1, 3)}, {"axes": a}) for a in ([0], [-2], [2, 0])],
    *[Case("flatten2d", {"x": real(2, 3, 4)}, {"axis": a}) for a in (1, 2, -1)],
    Case("flatten2d", {"x": real(2, 3, 4)}, {"axis": 0}, by("numpy", lambda x, axis: x.reshape(1, -1))),
    *[Case("stack", {"values": (whole(2, 3), whole(2, 3), whole(2, 3))}, {"axis": a}) for a in (0, -1, 2)],
    *[Case("concat", {"values": (real(2, 1), real(2, 3), real(2, 2))}, {"axis": a}) for a in (1, -1)],
    *[Case("tile", {"x": real(2, 3)}, {"reps": r}) for r in ([1, 1], [3, 2])],
    *[Case("reverse", {"x": whole(2, 3, 4)}, {"axes": a}) for a in ([-1], [0, 2])],
    *[
        Case("pad", {"x": real(2, 3, 4)}, {"pad": pad, "mode": mode, **value})
        for pad, mode, value in (
            ([0, 0, 1, 0, 2, 1], "constant", {}), ([3, 1], "constant", {"constant_val": np.float32(-1)}),
            ([2, 1, 0, 3], "reflect", {}), ([4, 2, 1, 5], "replicate", {}),
        )
    ],
    Case("pad", {"x": real(2, 3), "pad": np.array([1, 0, 0, 2], np.int32)}, {"mode": "constant"}),
    *[Case("split", {"x": real(4, 6)}, {"num_splits": n, "axis": a}) for n, a in ((2, 0), (3, -1), (6, 1))],
    *[
        Case("cumsum", {"x": real(2, 3, 4)}, {"axis": axis, "reverse": reverse, "exclusive": exclusive},
             by("numpy", lambda x, axis, reverse, exclusive: running_sum(x, axis, reverse, exclusive)))
        for axis, reverse, exclusive in itertools.product((0, 1, -1), (False, True), (False, True))
    ],
    *[Case("band_part", {"x": real(3, 4)}, {"lower": a, "upper": b}) for a, b in ((0, 0), (2, 1), (-1, -1), (1, 3))],
    *[
        Case("one_hot", {"indices": whole(2, 3, low=0, high=4)}, {"one_hot_vector_size": 4, "axis": axis},
             of_torch(lambda i, axis, **_: torch.movedim(F.one_hot(i.long(), 4), -1, axis).int()))
        for axis in (0, 1, -1)
    ],
    Case("range_1d", {"start": np.int32(9), "end": np.int32(0), "step": np.int32(-4)}),
    Case("fill", {"shape": np.array([2, 0, 3], np.int32)}, {"value": np.float32(2)}),
    Case("non_zero", {"x": truth(3, 4)}),
    *[Case("argsort", {"x": real(3, 4)}, {"axis": a, "ascending": up}) for a, up in ((0, True), (-2, False))],
]  # fmt: skip


def running_sum(x, axis, reverse, exclusive):
    x = np.flip(x, axis) if reverse else x
    result = np.cumsum(x, axis) - (x if exclusive else 0)
    return np.flip(result, axis) if reverse else result


def some_slice(shape):
    """Random begin, end, stride and masks; no empty slices, which Core ML does not have."""
    while True:
        stride = [int(RNG.choice([1, 1, 2, -1, -2])) for _ in shape]
        begin = [int(RNG.integers(-n, n)) for n in shape]
        end = [int(RNG.integers(-n, n + 1)) for n in shape]
        masks = {f"{m}_mask": [bool(b) for b in RNG.random(len(shape)) < 0.3] for m in ("begin", "end", "squeeze")}
        params = {"begin": begin, "end": end, "stride": stride, **masks}
        key = []
        for axis in range(len(shape)):
            first = None if masks["begin_mask"][axis] else begin[axis]
            last = None if masks["end_mask"][axis] else end[axis]
            at = first if first is not None else 0
            key.append(at if masks["squeeze_mask"][axis] else slice(first, last, stride[axis]))
            if masks["squeeze_mask"][axis]:
                stride[axis] = 1
        if all(masks["squeeze_mask"]) or any(n == 0 for n in np.zeros(shape)[tuple(key)].shape):
            continue
        return params, tuple(key)


def slices():
    for shape in [(5,), (4, 3), (3, 4, 5), (2, 3, 4, 3)] * 4:
        params, key = some_slice(shape)
        yield Case("slice_by_index", {"x": real(*shape)}, params, by("numpy", lambda x, k=key, **_: x[k]))
    for shape in [(5,), (4, 3), (3, 4, 5)] * 3:
        params, key = some_slice(shape)
        update = real(*np.zeros(shape)[key].shape)

        def updated(x, update, key=key, **_):
            result = x.copy()
            result[key] = update
            return result

        yield Case("slice_update", {"x": real(*shape), "update": update}, params, by("numpy", updated))


SLICES = list(slices())

SCATTER = {
    "add": lambda a, i, u: a.index_put(i, u, accumulate=True),
    "update": lambda a, i, u: a.index_put(i, u),
}
TABLE = real(4, 3, 5, low=1, high=3)
INDICES = [
    *[Case("gather", {"x": TABLE, "indices": np.array([0, 3, 3], np.int32)}, {"axis": 0})],
    *[Case("gather", {"x": whole(4, 3, 5), "indices": whole(2, 2, low=0, high=3)}, {"axis": a}) for a in (1, -2)],
    *[Case("gather_along_axis", {"x": TABLE, "indices": whole(4, 3, 2, low=0, high=5)}, {"axis": a}) for a in (2, -1)],
    *[
        Case("gather_nd", {"x": TABLE, "indices": indices}, {},
             by("numpy", lambda x, i: x[tuple(np.moveaxis(i, -1, 0))]))
        for indices in (whole(2, 1, low=0, high=4), whole(2, 3, 2, low=0, high=3), whole(6, 3, low=0, high=3))
    ],
    *[
        Case("scatter_along_axis", {"data": TABLE, "indices": whole(4, 3, 2, low=0, high=5), "updates": real(4, 3, 2)},
             {"axis": -1, "mode": mode},
             of_torch(lambda d, i, u, axis, mode, h=how: d.scatter_reduce(axis, i.long(), u, h)))
        for mode, how in (("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin"))
    ],
    *[
        Case("scatter_nd", {"data": TABLE, "indices": np.array([[0, 2], [3, 1]], np.int32), "updates": real(2, 5)},
             {"mode": mode}, of_torch(lambda d, i, u, mode: SCATTER[mode](d, (i[:, 0].long(), i[:, 1].long()), u)))
        for mode in SCATTER
    ],
]  # fmt: skip


def convolutions(count):
    """Random sizes, strides, dilations, groups and paddings of one to three axes."""
    for _ in range(count):
        rank = int(RNG.integers(1, 4))
        groups = int(RNG.choice([1, 1, 2, 3]))
        kernel, dilations = RNG.integers(1, 4, rank), RNG.integers(1, 3, rank)
        strides, pad = RNG.integers(1, 4, rank), RNG.integers(0, 3, 2 * rank)
        size = (kernel - 1) * dilations + 1 + RNG.integers(0, 5, rank)
        inputs, outputs = groups * int(RNG.integers(1, 4)), groups * int(RNG.integers(1, 4))
        bias = {"bias": real(outputs)} if RNG.random() < 0.5 else {}
        yield conv(
            real(int(RNG.integers(1, 3)), inputs, *size), real(outputs, inputs // groups, *kernel),
            strides=strides.tolist(), dilations=dilations.tolist(), groups=groups, pad_type="custom", pad=pad.tolist(),
            **bias,
        )  # fmt: skip


FAMILIES = {
    "binary": BINARY,
    "extreme": EXTREME,
    "reduce": REDUCE,
    "shape": SHAPE,
    "indices": INDICES,
    "conv": list(convolutions(12)),
}


@pytest.mark.parametrize("opset", ["iOS15", "iOS18"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, opset, tmp_path):
    check_precisions(FAMILIES[family], tmp_path, opset)


@pytest.mark.parametrize("opset", ["iOS15", "iOS18"])
def test_slices(opset, tmp_path):
    check([case for case in SLICES if exists(case, opset)], tmp_path, 0, opset)


SINCE_17 = [
    *[Case("reshape", {"x": real(2, 50)}, {"shape": s}) for s in ([1, 0, -1, 0], [0, 2, 0], [-1, 0])],
    *[
        Case(kind, {"x": x}, params)
        # no zeros: coremltools' topk negates them, which for unsigned types leaves 0 the largest
        for x in (whole(3, 4, low=1, high=9).astype(t) for t in (np.int8, np.uint8, np.int16, np.uint16))
        for kind, params in (
            ("reshape", {"shape": [2, 6]}), ("transpose", {"perm": [1, 0]}), ("expand_dims", {"axes": [1]}),
            ("slice_by_size", {"begin": [1, 0], "size": [2, 3]}), ("topk", {"k": 2, "axis": 0}), ("identity", {}),
        )
    ],
    *[Case("gather", {"x": whole(5, 2).astype(np.int8), "indices": np.array([4, 1], t)}) for t in (np.uint8, np.int16)],
    *[Case(kind, {"x": real(3, 5)}, {"output_dtype": "uint16"}) for kind in ("reduce_argmax", "reduce_argmin")],
    Case("topk", {"x": real(3, 5)}, {"k": 2, "output_indices_dtype": "uint16"}),
    Case("topk", {"x": real(3, 5)}, {"k": 3, "return_indices": False}),
    *[Case("cast", {"x": real(4, low=0, high=99)}, {"dtype": t}) for t in ("int8", "uint8", "int16", "uint16")],
]  # fmt: skip


@pytest.mark.parametrize("opset", ["iOS17", "iOS18"])
def test_small_integers_and_shapes_since_17(opset, tmp_path):
    existing = [case for case in SINCE_17 if exists(case, opset)]
    assert len(existing) > 0.9 * len(SINCE_17)
    check(existing, tmp_path, 1e-6, opset)


@pytest.mark.slow
def test_many_convolutions(tmp_path):
    check(list(convolutions(200)), tmp_path, 1e-4)


def run(kind, declared, operands, x=None):
    """One operation with constant operands, as a package could declare it that coremltools would not write."""
    inputs = {name: (Plain(np.ravel(v), str(np.asarray(v).dtype), np.shape(v)),) for name, v in operands.items()}
    inputs |= {} if x is None else {"x": ("x",)}
    outputs = tuple(Var(f"y{n}", dtype, shape) for n, (dtype, shape) in enumerate(declared))
    body = Block((), (Op(kind, kind, inputs, outputs),), tuple(var.name for var in outputs))
    given = () if x is None else (Var("x", "fp32", x.shape),)
    plan = compile_function(Function("main", "CoreML8", given, body, {}), Weights(), numerics_mode("float32"))
    return plan.execute({} if x is None else {"x": x}, body.outputs, None)


def test_topk_of_all():
    x = real(3, 5)
    values, positions = run("topk", [("fp32", (3, 5)), ("int32", (3, 5))], {"k": np.int32(-1), "axis": np.int32(0)}, x)
    wanted = torch.sort(torch.from_numpy(x), 0, descending=True)
    np.testing.assert_array_equal(values, wanted[0].numpy())
    np.testing.assert_array_equal(positions, wanted[1].numpy())


@pytest.mark.parametrize(
    ("kind", "operands", "x"),
    [
        ("fill", {"shape": np.array([1 << 20, 1 << 20], np.int32)}, None),
        ("random_normal", {"shape": np.array([1 << 20, 1 << 20], np.int32)}, None),
        ("range_1d", {"start": np.int32(0), "end": np.int32(2**31 - 1), "step": np.int32(1)}, None),
        ("tile", {"reps": np.array([1 << 20, 1 << 20], np.int32)}, np.ones((1, 1), np.float32)),
        ("pad", {"pad": np.array([1 << 20, 0, 1 << 20, 0], np.int32)}, np.ones((1, 1), np.float32)),
        ("resize_bilinear", {"target_size_height": np.int32(1 << 20), "target_size_width": np.int32(1 << 20)},
         np.ones((1, 1), np.float32)),
    ],
)  # fmt: skip
def test_results_that_are_not_as_declared_take_no_memory(kind, operands, x):
    with pytest.raises(ExecuteError, match=rf"op {kind} .* its result is declared as \[1, 2\], but would be \[\d+"):
        run(kind, [("fp32", (1, 2))], operands, x)
    free = (-1,) if kind == "range_1d" else (-1, -1)
    larger = {**operands, "step": np.float32(1e-9)} if kind == "range_1d" else operands
    with pytest.raises(ExecuteError, match=r"elements take more than the \d+ bytes of this machine's memory"):
        run(kind, [("fp32", free)], larger, x)
