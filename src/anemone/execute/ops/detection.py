"""Non-maximum suppression of boxes."""

# mypy: disable-error-code="no-any-return"

import numpy as np

from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of one box with others; boxes are (centre x, centre y, width, height)."""
    low = np.maximum(box[:2] - box[2:] / 2, others[:, :2] - others[:, 2:] / 2)
    high = np.minimum(box[:2] + box[2:] / 2, others[:, :2] + others[:, 2:] / 2)
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    union = np.prod(box[2:]) + np.prod(others[:, 2:], axis=1) - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def _kept(boxes: Array, scores: Array, limit: float, least: float, most: int, per_class: bool) -> list[int]:
    """Positions of the boxes (B, 4) that stay, best first; the best alone when no score (B, K) exceeds ``least``."""
    best, classes = scores.max(1), scores.argmax(1)
    order = np.argsort(-best, kind="stable")
    order = order[best[order] > least]
    kept: list[int] = []
    while order.size and len(kept) < most:
        first, rest = int(order[0]), order[1:]
        kept.append(first)
        hidden = _overlaps(boxes[first], boxes[rest]) > limit
        if per_class:
            hidden &= classes[rest] == classes[first]
        order = rest[~hidden]
    return kept or [int(best.argmax())]


@op("non_maximum_suppression")
def non_maximum_suppression(node: Node) -> Kernel:
    """boxes (n, B, 4), scores (n, B, K); with iOS17 (n, 4, B) and (n, K, B), without a least score and a count.

    The unused places are filled with zeros, their indices with -1.
    """
    limit, most = node.float("iou_threshold", 1.0), node.int("max_boxes", 1)
    per_class = node.flag("per_class_suppression", False)
    boxes_last = len(node.outputs) == 3
    least = node.float("score_threshold", -np.inf)

    def run(boxes: Array, scores: Array) -> tuple[Array, ...]:
        if boxes_last:
            boxes, scores = boxes.swapaxes(1, 2), scores.swapaxes(1, 2)
        count = len(boxes)
        found_boxes = np.zeros((count, most, 4), np.float32)
        found_scores = np.zeros((count, most, scores.shape[2]), np.float32)
        indices, numbers = np.full((count, most), -1, np.int32), np.zeros(count, np.int32)
        for item in range(count):
            kept = _kept(boxes[item], scores[item], limit, least, most, per_class)
            found_boxes[item, : len(kept)], found_scores[item, : len(kept)] = boxes[item, kept], scores[item, kept]
            indices[item, : len(kept)], numbers[item] = kept, len(kept)
        if boxes_last:
            return found_boxes.swapaxes(1, 2), found_scores.swapaxes(1, 2), indices
        return found_boxes, found_scores, indices, numbers

    return run
