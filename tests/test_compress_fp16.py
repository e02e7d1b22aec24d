"""Narrowing to fp16: values as numpy rounds them, losses counted one by one, what cannot be held refused."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from anemone.compress.codes import from_codes, last_code_to, to_codes
from anemone.compress.fp16 import Fp16Loss, combine, to_fp16
from anemone.errors import CheckpointError

EVERY_BIT_PATTERN = np.arange(1 << 16, dtype=np.uint16)


def fitting(dtype: type) -> Any:
    """Every bf16 number that fp16 can hold, as ``dtype``."""
    size = EVERY_BIT_PATTERN & 0x7FFF
    return EVERY_BIT_PATTERN[size <= 0x477F].view(ml_dtypes.bfloat16).astype(dtype)  # up to 65280


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32, np.float64])
def test_every_bf16_number_is_rounded_and_counted(dtype: type) -> None:
    values = fitting(dtype)
    narrow, loss = to_fp16(values, "w")
    wide = values.astype(np.float64)
    np.testing.assert_array_equal(narrow, wide.astype(np.float16))
    zeroed = sum(1 for v in wide if v != 0 and np.float16(v) == 0)
    subnormal = sum(1 for v in wide if 0 < abs(np.float16(v)) < 2.0**-14)
    assert loss == Fp16Loss(values.size, subnormal, zeroed)


def test_fp16_is_returned_as_it_is() -> None:
    values = np.array([[1, 2.0**-24], [0, -65504]], np.float16)
    narrow, loss = to_fp16(values, "w")
    assert np.shares_memory(narrow, values)
    assert loss == Fp16Loss(4)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 3, 1, 1), ()])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    narrow, loss = to_fp16(np.ones(shape, np.float32), "w")
    assert narrow.shape == shape
    assert loss.values == narrow.size


def test_a_part_of_a_matrix_is_narrowed() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(to_fp16(values[:, 1::2], "w")[0], values[:, 1::2])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_what_fp16_cannot_hold_is_refused_by_name(dtype: type) -> None:
    values = np.zeros(100_000, dtype)
    values[[5, 99_999]] = 70_000, -3e38
    with pytest.raises(
        CheckpointError, match=r"^lm_head\.weight has 2 values .*the largest is 3.*e.38, the limit 65504"
    ):
        to_fp16(values, "lm_head.weight")
    values[7] = np.nan
    with pytest.raises(CheckpointError, match=r"3 values that fp16 cannot hold \(1 are not numbers"):
        to_fp16(values, "lm_head.weight")


def test_rounding_decides_at_the_limit() -> None:
    assert to_fp16(np.array([65519.0], np.float32), "w")[0][0] == 65504
    with pytest.raises(CheckpointError, match="65520"):
        to_fp16(np.array([65520.0], np.float32), "w")


def test_losses_add_up() -> None:
    assert combine([Fp16Loss(3, 1, 0), Fp16Loss(4, 0, 2)]) == Fp16Loss(7, 1, 2)
    assert combine([]) == Fp16Loss()


def test_codes_follow_the_order_of_the_values() -> None:
    values = EVERY_BIT_PATTERN.view(np.float16)
    values = values[np.isfinite(values)]
    ordered = values[np.argsort(to_codes(values), kind="stable")]
    assert (np.diff(ordered.astype(np.float64)) >= 0).all()
    assert np.unique(to_codes(values)).size == values.size - 1  # 0 and -0 are one
    np.testing.assert_array_equal(from_codes(to_codes(values)), values)
    assert not np.signbit(from_codes(to_codes(np.array([-0.0], np.float16)))).any()


def test_last_code_to_a_limit() -> None:
    values = np.sort(np.random.default_rng(0).standard_normal(500).astype(np.float16))
    limits = np.random.default_rng(1).standard_normal(2000) * 1.5
    limits = np.append(limits, values.astype(np.float64))
    expected = np.searchsorted(values, limits, side="right")
    found = np.searchsorted(to_codes(values), last_code_to(limits), side="right")
    np.testing.assert_array_equal(found, expected)
