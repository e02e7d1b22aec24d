"""The operations that can be written (iOS 18 / macOS 15 op set): their parameters, and the value of each optional one.

coremltools writes every optional parameter that has a default as a constant of its own; so do we, so that no reader
has to know the defaults.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from anemone.errors import PackageError
from anemone.graph.ir import Constant, Op, Value

OPSET = "CoreML8"
SPECIFICATION_VERSION = 9

_Defaults = Mapping[str, Constant]


@dataclass(frozen=True)
class Signature:
    """``defaults`` are in the order in which they are written; other ``optional`` parameters may simply be absent."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    defaults: Callable[[Op], _Defaults] = field(default=lambda op: {})


def _signature(
    required: str, optional: str = "", defaults: _Defaults | Callable[[Op], _Defaults] | None = None
) -> Signature:
    chosen = defaults if callable(defaults) else lambda op: defaults or {}
    return Signature(tuple(required.split()), tuple(optional.split()), chosen)


def _alike(kinds: str, signature: Signature) -> dict[str, Signature]:
    return dict.fromkeys(kinds.split(), signature)


def _x(op: Op) -> Value:
    x = op.inputs["x"]
    assert isinstance(x, Value)
    return x


def _conv(op: Op) -> _Defaults:
    spatial = len(_x(op).shape) - 2
    ones, zeros = np.ones(spatial, np.int32), np.zeros(2 * spatial, np.int32)
    return {"strides": ones, "pad_type": "valid", "pad": zeros, "dilations": ones, "groups": np.int32(1)}


def _linear(op: Op) -> _Defaults:
    weight = op.inputs["weight"]
    assert isinstance(weight, Value)
    return {"bias": np.zeros(weight.shape[0], np.float16 if weight.dtype == "fp16" else np.float32)}


def _epsilon(value: float) -> Callable[[Op], _Defaults]:
    return lambda op: {"epsilon": np.float16(value) if _x(op).dtype == "fp16" else np.float32(value)}


_NO = np.bool_(False)
_ZERO = np.int32(0)
_SLICE = "stride begin_mask end_mask squeeze_mask"

SIGNATURES: dict[str, Signature] = {
    **_alike("silu sigmoid tanh exp sqrt square abs identity relu cos sin erf logical_not", _signature("x")),
    **_alike("add sub mul real_div pow maximum minimum logical_and logical_or", _signature("x y")),
    **_alike("equal not_equal less less_equal greater greater_equal", _signature("x y")),
    **_alike("reduce_mean reduce_sum reduce_max reduce_min", _signature("x", "axes keep_dims", {"keep_dims": _NO})),
    "cast": _signature("x dtype"),
    "clip": _signature("x alpha beta"),
    "concat": _signature("values axis", "interleave", {"interleave": _NO}),
    "conv": _signature("x weight", "bias strides pad_type pad dilations groups", _conv),
    "expand_dims": _signature("x axes"),
    "gather": _signature(
        "x indices",
        "axis batch_dims validate_indices",
        {"axis": _ZERO, "batch_dims": _ZERO, "validate_indices": _NO},
    ),
    "gather_along_axis": _signature("x indices", "axis validate_indices", {"axis": _ZERO, "validate_indices": _NO}),
    "gelu": _signature("x", "mode", {"mode": "EXACT"}),
    "inverse": _signature("x", "epsilon", _epsilon(1e-4)),
    "layer_norm": _signature("x axes epsilon", "gamma beta"),  # coremltools' default epsilon is fp32 whatever x is
    "linear": _signature("x weight", "bias", _linear),
    "matmul": _signature("x y", "transpose_x transpose_y", {"transpose_x": _NO, "transpose_y": _NO}),
    "read_state": _signature("input"),
    "reduce_argmax": _signature(
        "x",
        "axis keep_dims output_dtype",
        {"axis": np.int32(-1), "keep_dims": _NO, "output_dtype": "int32"},
    ),
    "reshape": _signature("x shape"),
    "rsqrt": _signature("x", "epsilon", _epsilon(1e-12)),
    "select": _signature("cond a b"),
    "slice_by_index": _signature("x begin end", _SLICE),
    "slice_by_size": _signature("x begin size"),
    "slice_update": _signature("x update begin end", _SLICE),
    "softmax": _signature("x", "axis", {"axis": np.int32(-1)}),
    "split": _signature("x axis", "num_splits split_sizes"),
    "squeeze": _signature("x", "axes"),
    "stack": _signature("values axis"),
    "tile": _signature("x reps"),
    "transpose": _signature("x perm"),
    "write_state": _signature("input data"),
}


def complete(op: Op) -> dict[str, object]:
    """The op's inputs followed by the defaults of those it leaves out. PackageError on a parameter or kind unknown."""
    signature = SIGNATURES.get(op.kind)
    if signature is None:
        raise PackageError(f"The operation {op.kind} is not one that can be written; add it to package/opset.py.")
    missing = [name for name in signature.required if name not in op.inputs]
    unknown = [name for name in op.inputs if name not in signature.required + signature.optional]
    if missing or unknown:
        raise PackageError(f"The operation {op.kind} lacks parameters {missing} and has unknown parameters {unknown}.")
    absent = {name: value for name, value in signature.defaults(op).items() if name not in op.inputs}
    return {**op.inputs, **absent}
