"""Operations that rearrange or repeat values without computing on them."""

# mypy: disable-error-code="no-any-return"

from collections.abc import Sequence

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, kernel, op


@kernel("identity", moves=True)
def identity(x: Array) -> Array:
    return x


@op("transpose", moves=True)
def transpose(node: Node) -> Kernel:
    perm = node.ints("perm")
    # a copy: BLAS adds in another order on a transposed view, so results would depend on where a program is cut
    return lambda x: np.transpose(x, perm).copy()


def _target(shape: Sequence[int], x: Array) -> list[int]:
    """0 keeps a size of x, counted from the last axis, and is 1 beyond the first; -1 takes what is left."""
    sizes = (1,) * (len(shape) - np.ndim(x)) + np.shape(x)[max(0, np.ndim(x) - len(shape)) :]
    return [size or kept for size, kept in zip(shape, sizes, strict=True)]


@op("reshape", moves=True)
def reshape(node: Node) -> Kernel:
    shape = node.ints("shape") if node.stored("shape") is not None else None
    if shape is None:
        return lambda x, shape: np.reshape(x, _target(shape.tolist(), x))
    if 0 not in shape:
        return lambda x: np.reshape(x, shape)
    return lambda x: np.reshape(x, _target(shape, x))


@op("expand_dims", moves=True)
def expand_dims(node: Node) -> Kernel:
    axes = node.ints("axes") or ()
    rank = len(node.outputs[0].shape)
    new = {axis % rank for axis in axes}
    key = tuple(np.newaxis if axis in new else slice(None) for axis in range(rank))
    return lambda x: np.asarray(x)[key]


@op("squeeze", moves=True)
def squeeze(node: Node) -> Kernel:
    """Drops the axes that have size 1 and ignores others, as PyTorch does."""
    axes = node.ints("axes")

    def run(x: Array) -> Array:
        chosen = range(x.ndim) if axes is None else {axis % x.ndim for axis in axes}
        return x.reshape([size for axis, size in enumerate(x.shape) if axis not in chosen or size != 1])

    return run


@op("flatten2d", moves=True)
def flatten2d(node: Node) -> Kernel:
    axis = node.int("axis", 1)
    return lambda x: x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1)


@op("concat", moves=True)
def concat(node: Node) -> Kernel:
    axis = node.int("axis", 0)
    if not node.flag("interleave", False):
        return lambda *values: np.concatenate([np.atleast_1d(v) for v in values], axis=axis)

    def interleaved(*values: Array) -> Array:
        after = axis % values[0].ndim + 1
        together = np.stack(values, axis=after)
        return together.reshape(*together.shape[: after - 1], -1, *together.shape[after + 1 :])

    return interleaved


@op("stack", moves=True)
def stack(node: Node) -> Kernel:
    axis = node.int("axis", 0)
    return lambda *values: np.stack(values, axis=axis)


@op("tile", moves=True)
def tile(node: Node) -> Kernel:
    def run(x: Array, reps: Array) -> Array:
        node.expect(tuple(n * count for n, count in zip(x.shape, reps.tolist(), strict=True)))
        return np.tile(x, reps.tolist())

    return run


@op("reverse", moves=True)
def reverse(node: Node) -> Kernel:
    axes = node.ints("axes")
    return lambda x: np.flip(x, axes)


@op("pad", moves=True)
def pad(node: Node) -> Kernel:
    """Pads the last axes; ``pad`` lists (before, after) for each of them."""
    mode = node.text("mode", "constant")
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    if mode not in modes:
        raise ExecuteError(f"its mode {mode!r} is not known")
    how = {"constant_values": node.float("constant_val", 0.0)} if mode == "constant" else {}

    def run(x: Array, pad: Array) -> Array:
        amounts = [[0, 0]] * (x.ndim - pad.size // 2) + pad.reshape(-1, 2).tolist()
        node.expect(tuple(n + before + after for n, (before, after) in zip(x.shape, amounts, strict=True)))
        return np.pad(x, amounts, mode=modes[mode], **how)  # type: ignore[call-overload]

    return run


@kernel("shape", moves=True)
def shape(x: Array) -> Array:
    return np.array(np.shape(x), np.int32)
