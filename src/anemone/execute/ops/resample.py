"""Sampling images at points: resample, affine and crop_resize."""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.grids import box_positions, checked_mode
from anemone.execute.ops.registry import Kernel, Node, op


def _pixels(coordinates: Array, size: int, mode: str, align_corners: bool) -> Array:
    """Coordinates of one axis in pixels. The ends of a normalised range are pixel centres when corners align."""
    if mode == "unnormalized":
        return coordinates
    unit = (coordinates + 1) / 2 if mode == "normalized_minus_one_to_one" else coordinates
    return unit * (size - 1) if align_corners else unit * size - 0.5


def _mirrored(pixels: Array, first: float, last: float) -> Array:
    """Positions reflected into first..last as often as it takes."""
    span = last - first
    if span <= 0:
        return np.zeros_like(pixels)
    distance = np.mod(pixels - first, 2 * span)
    return np.where(distance > span, 2 * span - distance, distance) + first


_INSIDE: dict[str, Callable[[Array, int], Array]] = {
    "constant": lambda pixels, size: pixels,
    "border": lambda pixels, size: np.clip(pixels, 0, size - 1),
    "reflection": lambda pixels, size: np.clip(_mirrored(pixels, 0, size - 1), 0, size - 1),
    "symmetric": lambda pixels, size: np.clip(_mirrored(pixels, -0.5, size - 0.5), 0, size - 1),
}


def _tap(x: Array, rows: Array, columns: Array, outside: float) -> Array:
    """x (B, C, H, W) at whole positions (B, h, w), ``outside`` beyond the image -> (B, h, w, C)"""
    height, width = x.shape[2:]
    within = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    rows = np.clip(np.nan_to_num(rows), 0, height - 1).astype(np.intp)
    columns = np.clip(np.nan_to_num(columns), 0, width - 1).astype(np.intp)
    batch = np.arange(len(x)).reshape(-1, 1, 1)
    return np.where(within[..., None], x[batch, :, rows, columns], np.float32(outside))


def _bilinear(x: Array, rows: Array, columns: Array, outside: float) -> Array:
    """x (B, C, H, W) between pixels at (B, h, w) -> (B, C, h, w)"""
    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top).astype(np.float32)[..., None], (columns - left).astype(np.float32)[..., None]
    above = _tap(x, top, left, outside) * (1 - right) + _tap(x, top, left + 1, outside) * right
    below = _tap(x, top + 1, left, outside) * (1 - right) + _tap(x, top + 1, left + 1, outside) * right
    return np.moveaxis(above * (1 - down) + below * down, -1, 1)


@op("resample")
def resample(node: Node) -> Kernel:
    """x (B, C, H, W) at ``coordinates`` (B, h, w, 2), each (x, y); nearest takes the even one of two as near."""
    sampling, padding = node.text("sampling_mode", "bilinear"), node.text("padding_mode", "constant")
    mode, align_corners = node.text("coordinates_mode", ""), node.flag("align_corners", False)
    outside = node.float("padding_value", 0.0)
    if sampling not in ("bilinear", "nearest"):
        raise ExecuteError(f"its sampling_mode {sampling!r} is not known")
    if padding not in _INSIDE:
        raise ExecuteError(f"its padding_mode {padding!r} is not known")
    if mode not in ("unnormalized", "normalized_minus_one_to_one", "normalized_zero_to_one"):
        raise ExecuteError(f"its coordinates_mode {mode!r} is not known")
    inside = _INSIDE[padding]

    def run(x: Array, coordinates: Array) -> Array:
        height, width = x.shape[2:]
        points = np.asarray(coordinates, np.float32)
        columns = inside(_pixels(points[..., 0], width, mode, align_corners), width)
        rows = inside(_pixels(points[..., 1], height, mode, align_corners), height)
        if sampling == "nearest":
            return np.moveaxis(_tap(x, np.rint(rows), np.rint(columns), outside), -1, 1)
        return _bilinear(x, rows, columns, outside)

    return run


def _normalised(count: int, align_corners: bool) -> Array:
    """The coordinates -1..1 of ``count`` pixels."""
    if align_corners:
        return np.linspace(-1, 1, count, dtype=np.float32) if count > 1 else np.zeros(1, np.float32)
    return ((2 * np.arange(count) + 1) / count - 1).astype(np.float32)


@op("affine")
def affine(node: Node) -> Kernel:
    """Each pixel of the output comes from where the matrix [a0, a1, a2, b0, b1, b2] maps it, in coordinates -1..1."""
    height, width = node.int("output_height", 1), node.int("output_width", 1)
    align_corners, outside = node.flag("align_corners", True), node.float("padding_value", 0.0)
    settings = {
        "sampling_mode": "bilinear", "padding_mode": "constant", "coordinates_mode": "normalized_minus_one_to_one"
    }  # fmt: skip
    for name, known in settings.items():
        if node.text(name, known) != known:
            raise ExecuteError(f"its {name} {node.text(name, known)!r} is not known; MIL defines {known!r} alone")
    node.expect((*node.outputs[0].shape[:2], height, width))
    across, down = _normalised(width, align_corners), _normalised(height, align_corners)[:, None]

    def run(x: Array, transform_matrix: Array) -> Array:
        matrix = np.broadcast_to(transform_matrix, (len(x), 6))
        a0, a1, a2, b0, b1, b2 = matrix.T[:, :, None, None]
        columns = _pixels(a0 * across + a1 * down + a2, x.shape[3], settings["coordinates_mode"], align_corners)
        rows = _pixels(b0 * across + b1 * down + b2, x.shape[2], settings["coordinates_mode"], align_corners)
        return _bilinear(x, rows, columns, outside)

    return run


_BOXES: dict[str, Callable[[Array], tuple[Array, ...]]] = {
    "CORNERS_HEIGHT_FIRST": lambda b: (b[:, 0], b[:, 2], b[:, 1], b[:, 3]),
    "CORNERS_WIDTH_FIRST": lambda b: (b[:, 1], b[:, 3], b[:, 0], b[:, 2]),
    "CENTER_SIZE_HEIGHT_FIRST": lambda b: (
        b[:, 0] - b[:, 2] / 2, b[:, 0] + b[:, 2] / 2, b[:, 1] - b[:, 3] / 2, b[:, 1] + b[:, 3] / 2
    ),
    "CENTER_SIZE_WIDTH_FIRST": lambda b: (
        b[:, 1] - b[:, 3] / 2, b[:, 1] + b[:, 3] / 2, b[:, 0] - b[:, 2] / 2, b[:, 0] + b[:, 2] / 2
    ),
}  # fmt: skip


@op("crop_resize")
def crop_resize(node: Node) -> Kernel:
    """Boxes of x (B, C, H, W), each resized to (h, w); points outside the image give ``pad_value``.

    ``boxes`` (N, 4), each of the image that ``box_indices`` says -> (N, C, h, w); before iOS17 ``roi`` (N, 1, 4, 1, 1)
    of every image -> (N, B, C, h, w), or (N, 1, 5, 1, 1), which begins with the image -> (N, 1, C, h, w).
    """
    height, width = node.int("target_height", 1), node.int("target_width", 1)
    normalized, scale = node.flag("normalized_coordinates", False), node.float("spatial_scale", 1.0)
    convention, mode = node.text("box_coordinate_mode", "CORNERS_HEIGHT_FIRST"), node.text("sampling_mode", "DEFAULT")
    outside = node.float("pad_value", 0.0)
    node.expect((*node.outputs[0].shape[:-2], height, width))
    checked_mode(mode)
    if convention not in _BOXES:
        raise ExecuteError(f"its box_coordinate_mode {convention!r} is not known")

    def crops(x: Array, boxes: Array, images: Array) -> Array:
        """(N, C, h, w)"""
        if images.size and not (images.min() >= 0 and images.max() < len(x)):
            raise ExecuteError(f"boxes of the images {images.min()}..{images.max()} are asked for; there are {len(x)}")
        sides = np.stack(_BOXES[convention](boxes.astype(np.float64) * scale), 1)
        if normalized:
            sides *= [x.shape[2] - 1, x.shape[2] - 1, x.shape[3] - 1, x.shape[3] - 1]
        rows = np.stack([box_positions(top, bottom, height, mode) for top, bottom, _, _ in sides])
        columns = np.stack([box_positions(left, right, width, mode) for _, _, left, right in sides])
        rows, columns = np.broadcast_arrays(rows[:, :, None], columns[:, None, :])
        within = (rows >= 0) & (rows <= x.shape[2] - 1) & (columns >= 0) & (columns <= x.shape[3] - 1)
        result = _bilinear(x[images], rows, columns, 0.0)
        return np.where(within[:, None], result, np.float32(outside))

    def of_boxes(x: Array, boxes: Array, box_indices: Array | None = None) -> Array:
        return crops(x, boxes, np.arange(len(boxes)) if box_indices is None else box_indices.astype(np.intp))

    def of_regions(x: Array, roi: Array) -> Array:
        flat = roi.reshape(len(roi), -1)
        if flat.shape[1] == 5:
            return crops(x, flat[:, 1:], flat[:, 0].astype(np.intp))[:, None]
        every = crops(x, np.repeat(flat, len(x), 0), np.tile(np.arange(len(x)), len(flat)))
        return every.reshape(len(flat), len(x), *every.shape[1:])

    return of_regions if node.has("roi") else of_boxes
