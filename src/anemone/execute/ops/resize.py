"""Resizing along axes: bilinear and nearest neighbour, to a size or by a factor."""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.grids import checked_mode, positions
from anemone.execute.ops.registry import Kernel, Node, op

Sampler = Callable[[Array, int, int], Array]  # x, axis, new size


def _linear(mode: str) -> Sampler:
    def sample(x: Array, axis: int, count: int) -> Array:
        where = positions(x.shape[axis], count, mode)
        low = np.floor(where).astype(np.intp)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        share = (where - low).astype(np.float32).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        return np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share

    return sample


def _nearest(mode: str) -> Sampler:
    def sample(x: Array, axis: int, count: int) -> Array:
        where = np.floor(positions(x.shape[axis], count, mode) + 0.5).astype(np.intp)
        return np.take(x, np.minimum(where, x.shape[axis] - 1), axis)

    return sample


def _pixel_centres(x: Array, axis: int, count: int) -> Array:
    """The pixel whose area holds the centre of the new one."""
    where = (2 * np.arange(count) + 1) * x.shape[axis] // (2 * count)
    return np.take(x, where, axis)


def _pixel_corners(x: Array, axis: int, count: int) -> Array:
    """The pixel whose area holds the first corner of the new one."""
    return np.take(x, np.arange(count) * x.shape[axis] // count, axis)


def _resized(node: Node, x: Array, sizes: list[int], sample: Sampler) -> Array:
    """``sizes``: of the last axes."""
    node.expect((*x.shape[: x.ndim - len(sizes)], *sizes))
    for axis, count in enumerate(sizes, x.ndim - len(sizes)):
        if count < 1:
            raise ExecuteError(f"it would resize axis {axis} to {count}")
        x = sample(x, axis, count)
    return x


@op("resize_bilinear")
def resize_bilinear(node: Node) -> Kernel:
    sizes = [node.int("target_size_height", 1), node.int("target_size_width", 1)]
    sample = _linear(checked_mode(node.text("sampling_mode", "DEFAULT")))
    return lambda x: _resized(node, x, sizes, sample)


@op("resize_nearest_neighbor", moves=True)
def resize_nearest_neighbor(node: Node) -> Kernel:
    """coremltools writes it for TensorFlow's nearest neighbour with half-pixel centres."""
    sizes = [node.int("target_size_height", 1), node.int("target_size_width", 1)]
    return lambda x: _resized(node, x, sizes, _pixel_centres)


def _scaled(node: Node) -> Callable[[Array], list[int]]:
    """The sizes of the last two axes times their factors, rounded down in fp32 as MIL's type inference does."""
    factors = [np.float32(node.float(f"scale_factor_{side}", 1.0)) for side in ("height", "width")]
    return lambda x: [int(np.floor(f * np.float32(n))) for f, n in zip(factors, x.shape[-2:], strict=True)]


@op("upsample_nearest_neighbor", moves=True)
def upsample_nearest_neighbor(node: Node) -> Kernel:
    """With a fractional factor, the ratio of the sizes counts instead."""
    scaled = _scaled(node)
    return lambda x: _resized(node, x, scaled(x), _pixel_corners)


@op("upsample_bilinear")
def upsample_bilinear(node: Node) -> Kernel:
    align_corners = node.flag("align_corners", True)
    if align_corners and node.flag("half_pixel_centers", False):
        raise ExecuteError("align_corners and half_pixel_centers exclude each other")
    half_pixel = node.flag("half_pixel_centers", not align_corners)
    sample = _linear("STRICT_ALIGN_CORNERS" if align_corners else "UNALIGN_CORNERS" if half_pixel else "DEFAULT")
    scaled = _scaled(node)
    return lambda x: _resized(node, x, scaled(x), sample)


@op("resize")
def resize(node: Node) -> Kernel:
    """The last axes to the last numbers of ``shape``; 0 keeps a size.

    Nearest neighbour in the default mode takes pixel centres: coremltools writes it for the same TensorFlow operation
    as resize_nearest_neighbor.
    """
    mode, how = checked_mode(node.text("sampling_mode", "DEFAULT")), node.text("interpolation_mode", "LINEAR")
    if how not in ("LINEAR", "NEAREST_NEIGHBOR"):
        raise ExecuteError(f"its interpolation_mode {how!r} is not known")
    nearest = _pixel_centres if mode == "DEFAULT" else _nearest(mode)
    sample = nearest if how == "NEAREST_NEIGHBOR" else _linear(mode)
    dims = node.int("resized_dims", 0)

    def run(x: Array, shape: Array) -> Array:
        wanted = shape.tolist()[len(shape) - dims :]
        sizes = [int(size) or n for size, n in zip(wanted, x.shape[x.ndim - dims :], strict=True)]
        return _resized(node, x, sizes, sample)

    return run
