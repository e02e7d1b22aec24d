"""Blocks, windows and sequences moved about, 8-bit activations, neighbouring channels: against torch or plain loops."""

import itertools

import numpy as np
import pytest
import torch
from execute_helpers import Case, Numbers, by, check, check_precisions, coremltools, of_torch, published

coremltools()
NUMBERS = Numbers(24)
real, whole = NUMBERS.real, NUMBERS.whole
F = torch.nn.functional
IMAGE = real(2, 8, 4, 6)


def depth_to_space(x, block_size):
    """As TensorFlow documents DepthToSpace: channel (i * b + j) * C + c goes to row i and column j of a block."""
    b = block_size
    n, c, h, w = x.shape
    result = np.empty((n, c // (b * b), h * b, w * b), x.dtype)
    for i, j in itertools.product(range(b), repeat=2):
        first = (i * b + j) * result.shape[1]
        result[:, :, i::b, j::b] = x[:, first : first + result.shape[1]]
    return result


def space_to_depth(x, block_size):
    parts = itertools.product(range(block_size), repeat=2)
    return np.concatenate([x[:, :, i::block_size, j::block_size] for i, j in parts], 1)


def space_to_batch(x, block_shape, paddings):
    x = np.pad(x, [(0, 0), (0, 0), *paddings])
    parts = itertools.product(range(block_shape[0]), range(block_shape[1]))
    return np.concatenate([x[:, :, i :: block_shape[0], j :: block_shape[1]] for i, j in parts])


def batch_to_space(x, block_shape, crops):
    (a, b), n = block_shape, len(x) // np.prod(block_shape)
    result = np.empty((n, x.shape[1], x.shape[2] * a, x.shape[3] * b), x.dtype)
    for number, (i, j) in enumerate(itertools.product(range(a), range(b))):
        result[:, :, i::a, j::b] = x[number * n : (number + 1) * n]
    (top, bottom), (left, right) = crops
    return result[:, :, top : result.shape[2] - bottom, left : result.shape[3] - right]


def reverse_sequence(x, lengths, seq_axis=0, batch_axis=0):
    result = x.copy()
    moved, source = np.moveaxis(result, (batch_axis, seq_axis), (0, 1)), np.moveaxis(x, (batch_axis, seq_axis), (0, 1))
    for item, length in enumerate(lengths):
        moved[item, :length] = source[item, :length][::-1]
    return result


def windows(x, axis, size, stride=1):
    """torch's unfold puts the windows' elements last."""
    return torch.movedim(x.unfold(axis, size, stride), -1, axis % x.ndim + 1)


REARRANGE = [
    *[Case("depth_to_space", {"x": IMAGE}, {"block_size": 2}, by("loop", depth_to_space))],
    Case("depth_to_space", {"x": real(1, 18, 2, 3)}, {"block_size": 3}, by("loop", depth_to_space)),
    Case("space_to_depth", {"x": IMAGE}, {"block_size": 2}, by("loop", space_to_depth)),
    Case("space_to_depth", {"x": real(1, 2, 6, 9)}, {"block_size": 3}, by("loop", space_to_depth)),
    *[
        Case("pixel_shuffle", {"x": x}, {"upscale_factor": f},
             of_torch(lambda x, upscale_factor: F.pixel_shuffle(x, upscale_factor)))
        for x, f in ((IMAGE, 2), (real(1, 18, 2, 3), 3))
    ],
    *[
        Case("space_to_batch", {"x": x}, {"block_shape": block, "paddings": np.array(pad, np.int32)},
             by("loop", space_to_batch))
        for x, block, pad in ((IMAGE, [2, 3], [[0, 0], [0, 0]]), (real(1, 2, 3, 4), [2, 2], [[1, 0], [1, 1]]))
    ],
    *[
        Case("batch_to_space", {"x": x}, {"block_shape": block, "crops": np.array(crop, np.int32)},
             by("loop", batch_to_space))
        for x, block, crop in (
            (real(6, 2, 3, 2), [2, 3], [[0, 0], [0, 0]]), (real(8, 1, 3, 2), [2, 2], [[1, 2], [0, 1]])
        )
    ],
    *[
        Case("reverse_sequence", {"x": x, "lengths": np.array(lengths, np.int32)}, axes, by("loop", reverse_sequence))
        for x, lengths, axes in (
            (real(3, 4), [2, 0, 4], {"seq_axis": 1, "batch_axis": 0}),
            (real(4, 2, 3), [3, 1, 4], {"seq_axis": 0, "batch_axis": -1}),
            (whole(2, 5, 2), [5, 2], {"seq_axis": -2, "batch_axis": 0}),
        )
    ],
    *[
        Case("sliding_windows", {"x": x}, {"axis": axis, "size": size, **stride}, of_torch(windows))
        for x, axis, size, stride in (
            (real(7), 0, 3, {}), (real(2, 9, 3), 1, 4, {"stride": 2}), (whole(3, 8), -1, 2, {"stride": 3}),
            (real(2, 3, 6), -2, 3, {}),
        )
    ],
    *[
        Case(
            "local_response_norm", {"x": x},
            {"size": size, "alpha": np.float32(a), "beta": np.float32(b), "k": np.float32(k)},
            of_torch(lambda x, size, alpha, beta, k: F.local_response_norm(x, size, *map(float, (alpha, beta, k)))),
        )
        for x, size, a, b, k in ((IMAGE, 3, 0.5, 0.75, 1), (real(1, 5, 6), 5, 1, 0.5, 2), (IMAGE, 2, 0.25, 1, 1))
    ],
]  # fmt: skip

SINCE_16 = [
    *[
        Case("pixel_unshuffle", {"x": x}, {"downscale_factor": np.uint32(f)},
             of_torch(lambda x, downscale_factor: F.pixel_unshuffle(x, int(downscale_factor))))
        for x, f in ((IMAGE, 2), (real(1, 2, 6, 9), 3))
    ],
    *[
        Case(
            "reshape_like", {"x": x, "ref_tensors": (real(2, 3, 4), real(1, 5, 6))},
            {"begins": begins, "ends": ends, "end_masks": masks},
            by("numpy", lambda x, *_, s=shape, **__: x.reshape(s)),
        )
        for x, begins, ends, masks, shape in (
            (real(180), (0, 1), (2, 0), (False, True), (2, 3, 5, 6)),
            (whole(10, 2), (2, -2), (3, -1), (False, False), (4, 5)),
        )
    ],
]  # fmt: skip

FAMILIES = {"rearrange": REARRANGE, "since iOS16": SINCE_16}


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS18"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, opset, tmp_path):
    if family == "rearrange" or opset != "iOS15":
        check_precisions(FAMILIES[family], tmp_path, opset)


ACTIVATIONS = real(2, 3, 4, low=-40, high=40)
BYTES = NUMBERS.rng.integers(-128, 128, (2, 3, 4))
SCALES, POINTS = np.array([0.25, 0.5, 0.125], np.float32), np.array([3, -5, 100], np.int8)


def torch_quantize(x, scale, output_dtype, zero_point=None, axis=0):
    kind = torch.qint8 if output_dtype == "int8" else torch.quint8
    scale, zero = torch.from_numpy(np.asarray(scale, np.float32)), torch.from_numpy(np.asarray(zero_point or 0))
    if scale.ndim == 0:
        return torch.quantize_per_tensor(x, scale, zero, kind).int_repr()
    return torch.quantize_per_channel(x, scale, torch.from_numpy(np.asarray(zero_point)), axis, kind).int_repr()


def torch_dequantize(x, scale, zero_point=0, axis=0):
    shape = [-1 if np.ndim(scale) and a == axis % x.ndim else 1 for a in range(x.ndim)]
    scale, zero = (torch.from_numpy(np.reshape(np.asarray(v, np.float32), shape)) for v in (scale, zero_point))
    return (x.float() - zero) * scale


def quantized(dtype, **params):
    return Case("quantize", {"input": ACTIVATIONS}, {"output_dtype": dtype, **params})


QUANTIZE = [
    quantized("int8", scale=np.float32(0.25)),
    quantized("uint8", scale=np.float32(0.5), zero_point=np.uint8(60)),
    quantized("int8", scale=SCALES, zero_point=POINTS, axis=1),
    quantized("uint8", scale=SCALES, zero_point=POINTS.view(np.uint8), axis=-2),
    Case("quantize", {"input": np.array([0.5, 1.5, -0.5, 2.5, 900, -900], np.float32)},
         {"output_dtype": "int8", "scale": np.float32(1)}, of_torch(torch_quantize)),
    Case("dequantize", {"input": BYTES.astype(np.int8)}, {"scale": np.float32(0.25)}, of_torch(torch_dequantize)),
    Case("dequantize", {"input": (BYTES + 128).astype(np.uint8)}, {"scale": np.float32(0.5), "zero_point": np.uint8(7)},
         of_torch(torch_dequantize)),
    *[
        Case("dequantize", {"input": BYTES.astype(np.int8)}, {"scale": SCALES, "zero_point": POINTS, "axis": axis},
             of_torch(torch_dequantize))
        for axis in (1, -2)
    ],
]  # fmt: skip


@pytest.mark.parametrize("opset", ["iOS17", "iOS18"])
def test_quantize(opset, tmp_path):
    check_precisions(QUANTIZE, tmp_path, opset)


def overlap(a, b):
    """Intersection over union of (centre x, centre y, width, height)."""
    shared = 1.0
    for at, size in ((0, 2), (1, 3)):
        end = min(a[at] + a[size] / 2, b[at] + b[size] / 2)
        shared *= max(0, end - max(a[at] - a[size] / 2, b[at] - b[size] / 2))
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)


def suppressed(boxes, scores, iou_threshold, max_boxes, score_threshold=-np.inf, per_class_suppression=False):
    """The textbook loop: from the best box down, each stays unless one that stayed hides it."""
    n, _, classes = scores.shape
    found, scored = np.zeros((n, max_boxes, 4)), np.zeros((n, max_boxes, classes))
    indices, numbers = np.full((n, max_boxes), -1, np.int32), np.zeros(n, np.int32)
    for item in range(n):
        best, kind = scores[item].max(1), scores[item].argmax(1)
        kept = []
        for i in sorted(range(len(best)), key=lambda i: -best[i]):
            rivals = [j for j in kept if not per_class_suppression or kind[i] == kind[j]]
            hidden = any(overlap(boxes[item, i], boxes[item, j]) > iou_threshold for j in rivals)
            if best[i] > score_threshold and not hidden:
                kept.append(i)
        kept = kept[:max_boxes] or [int(best.argmax())]
        found[item, : len(kept)], scored[item, : len(kept)] = boxes[item, kept], scores[item, kept]
        indices[item, : len(kept)], numbers[item] = kept, len(kept)
    return found, scored, indices, numbers


def suppressed_17(boxes, scores, **params):
    found, scored, indices, _ = suppressed(boxes.swapaxes(1, 2), scores.swapaxes(1, 2), **params)
    return found.swapaxes(1, 2), scored.swapaxes(1, 2), indices


PLACES = np.concatenate([real(2, 12, 2, low=0, high=10), real(2, 12, 2, low=2, high=6)], 2)
MARKS = real(2, 12, 3, low=-3, high=3)
SETTINGS = [
    {"iou_threshold": np.float32(iou), "max_boxes": most, "per_class_suppression": per_class}
    for iou, most, per_class in ((0.3, 5, False), (0.1, 12, False), (0.2, 8, True), (1, 4, False))
]


LINE_OF_BOXES = np.repeat(np.arange(4, dtype=np.float32), 4).reshape(1, 4, 4)
LINE_OF_MARKS = np.array([[[-3.5], [9.4], [2.3], [0.7]]], np.float32)
SUPPRESSION = [
    *[
        Case("non_maximum_suppression", {"boxes": PLACES, "scores": MARKS}, {**settings, "score_threshold": least},
             by("loop", suppressed))
        for settings in SETTINGS for least in (np.float32(-5), np.float32(0.5), np.float32(9))
    ],
    Case(
        "non_maximum_suppression", {"boxes": LINE_OF_BOXES, "scores": LINE_OF_MARKS},
        {"iou_threshold": np.float32(0.2), "score_threshold": np.float32(0.4), "max_boxes": 2,
         "per_class_suppression": True},
        published(LINE_OF_BOXES[:, 1:3], LINE_OF_MARKS[:, 1:3], [[1, 2]], [2]),
    ),
]  # fmt: skip


@pytest.mark.parametrize("opset", ["iOS15", "iOS16"])
def test_non_maximum_suppression(opset, tmp_path):
    """Also when no box has a sufficient score: the best one comes then."""
    check(SUPPRESSION, tmp_path, 1e-5, opset)


@pytest.mark.parametrize("opset", ["iOS17", "iOS18"])
def test_non_maximum_suppression_with_boxes_last(opset, tmp_path):
    inputs = {"boxes": PLACES.swapaxes(1, 2).copy(), "scores": MARKS.swapaxes(1, 2).copy()}
    cases = [Case("non_maximum_suppression", inputs, settings, by("loop", suppressed_17)) for settings in SETTINGS]
    check_precisions(cases, tmp_path, opset)
