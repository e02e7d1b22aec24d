"""Verification's look at stored weights: damage that executing a package cannot show."""

import numpy as np
import pytest

from anemone.compress.palettize import palettize
from anemone.evaluate.weights import misplaced


@pytest.fixture
def source():
    return np.random.default_rng(3).standard_t(4, (48, 96)).astype(np.float32)


def test_the_checkpoint_rounded_to_fp16_is_right(source):
    assert misplaced(source.astype(np.float16), source, palettised=False) == 0


def test_each_changed_value_counts(source):
    stored = source.astype(np.float16)
    stored[5, 7], stored[40, 0] = -stored[5, 7], np.nan
    assert misplaced(stored, source, palettised=False) == 2


@pytest.mark.parametrize("bits", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("group", [0, 8])
def test_palettised_values_are_the_nearest(source, bits, group):
    assert misplaced(palettize(source, bits, group).dequantise(), source, palettised=True) == 0


def test_a_damaged_index_counts(source):
    lut = palettize(source, 4, 8)
    lut.indices[9, 30] ^= 8
    assert misplaced(lut.dequantise(), source, palettised=True) == 1


def test_a_damaged_table_counts(source):
    lut = palettize(source, 4, 8)
    lut.table[2, 5] += 1
    assert misplaced(lut.dequantise(), source, palettised=True) > 0


def test_rows_in_another_order_count(source):
    stored = palettize(source, 4, 8).dequantise()
    assert misplaced(stored[::-1], source, palettised=True) > 1000
