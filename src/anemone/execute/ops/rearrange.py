"""Operations that move blocks, windows and sequences of values without computing on them."""

# mypy: disable-error-code="no-any-return"

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op


@op("depth_to_space", moves=True)
def depth_to_space(node: Node) -> Kernel:
    """(N, b * b * C, H, W) to (N, C, H * b, W * b); the position in a block is the slow part of the channel."""
    b = node.int("block_size", 1)

    def run(x: Array) -> Array:
        n, c, h, w = x.shape
        blocks = x.reshape(n, b, b, c // (b * b), h, w)
        return blocks.transpose(0, 3, 4, 1, 5, 2).reshape(n, c // (b * b), h * b, w * b)

    return run


@op("space_to_depth", moves=True)
def space_to_depth(node: Node) -> Kernel:
    """The inverse of depth_to_space."""
    b = node.int("block_size", 1)

    def run(x: Array) -> Array:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // b, b, w // b, b)
        return blocks.transpose(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)

    return run


@op("pixel_shuffle", moves=True)
def pixel_shuffle(node: Node) -> Kernel:
    """As depth_to_space, with the position in a block as the fast part of the channel."""
    f = node.int("upscale_factor", 1)

    def run(x: Array) -> Array:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c // (f * f), f, f, h, w)
        return blocks.transpose(0, 1, 4, 2, 5, 3).reshape(n, c // (f * f), h * f, w * f)

    return run


@op("pixel_unshuffle", moves=True)
def pixel_unshuffle(node: Node) -> Kernel:
    """The inverse of pixel_shuffle."""
    f = node.int("downscale_factor", 1)

    def run(x: Array) -> Array:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // f, f, w // f, f)
        return blocks.transpose(0, 1, 3, 5, 2, 4).reshape(n, c * f * f, h // f, w // f)

    return run


def _pairs(node: Node, name: str) -> list[tuple[int, int]]:
    values = node.ints(name) or (0, 0, 0, 0)
    return list(zip(values[::2], values[1::2], strict=True))


@op("space_to_batch", moves=True)
def space_to_batch(node: Node) -> Kernel:
    """(N, C, H, W), padded, to (bh * bw * N, C, H / bh, W / bw): one batch item per position in a block."""
    bh, bw = node.ints("block_shape") or (1, 1)
    paddings = _pairs(node, "paddings")

    def run(x: Array) -> Array:
        x = np.pad(x, [(0, 0), (0, 0), *paddings])
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // bh, bh, w // bw, bw)
        return blocks.transpose(3, 5, 0, 1, 2, 4).reshape(n * bh * bw, c, h // bh, w // bw)

    return run


@op("batch_to_space", moves=True)
def batch_to_space(node: Node) -> Kernel:
    """The inverse of space_to_batch, cropped."""
    bh, bw = node.ints("block_shape") or (1, 1)
    (top, bottom), (left, right) = _pairs(node, "crops")

    def run(x: Array) -> Array:
        n, c, h, w = x.shape
        blocks = x.reshape(bh, bw, n // (bh * bw), c, h, w)
        whole = blocks.transpose(2, 3, 4, 0, 5, 1).reshape(n // (bh * bw), c, h * bh, w * bw)
        return whole[:, :, top : h * bh - bottom, left : w * bw - right]

    return run


@op("crop", moves=True)
def crop(node: Node) -> Kernel:
    """Without the outer rows and columns of the last two axes."""
    (top, bottom), (left, right) = node.ints("crop_height") or (0, 0), node.ints("crop_width") or (0, 0)
    return lambda x: x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right]


@op("reverse_sequence", moves=True)
def reverse_sequence(node: Node) -> Kernel:
    """The first ``lengths[i]`` elements of ``seq_axis`` backwards, for each i of ``batch_axis``."""
    seq_axis, batch_axis = node.int("seq_axis", 0), node.int("batch_axis", 0)

    def run(x: Array, lengths: Array) -> Array:
        count = x.shape[seq_axis]
        if lengths.size and not (lengths.min() >= 0 and lengths.max() <= count):
            raise ExecuteError(f"lengths {lengths.min()}..{lengths.max()} reach outside 0..{count}")
        positions, ends = np.arange(count), lengths.reshape(-1, 1)
        source = np.where(positions < ends, ends - 1 - positions, positions)  # (batch, sequence)
        batch, sequence = batch_axis % x.ndim, seq_axis % x.ndim
        source = source if batch < sequence else source.T
        shape = [size if axis in (batch, sequence) else 1 for axis, size in enumerate(x.shape)]
        return np.take_along_axis(x, source.reshape(shape), sequence)

    return run


@op("sliding_windows", moves=True)
def sliding_windows(node: Node) -> Kernel:
    """Windows along ``axis``, their elements on a new axis behind it."""
    axis, size, stride = node.int("axis", 0), node.int("size", 1), node.int("stride", 1)

    def run(x: Array) -> Array:
        where = axis % x.ndim
        windows = sliding_window_view(x, size, axis=where)
        every = windows[(slice(None),) * where + (slice(None, None, stride),)]
        return np.moveaxis(every, -1, where + 1)

    return run


@op("reshape_like", moves=True)
def reshape_like(node: Node) -> Kernel:
    """The shape is put together from parts of the shapes of other tensors."""
    parts = [
        slice(begin, None if masked else end)
        for begin, end, masked in zip(
            node.ints("begins") or (), node.ints("ends") or (), node.ints("end_masks") or (), strict=True
        )
    ]

    def run(x: Array, *ref_tensors: Array) -> Array:
        shape = [size for ref, part in zip(ref_tensors, parts, strict=True) for size in np.shape(ref)[part]]
        return np.reshape(x, shape)

    return run
