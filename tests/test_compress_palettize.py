"""Palettised matrices: error per group against ckwrap, awkward shapes and rows, blocks, threads, memory."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from kmeans_truth import best_centroids, best_errors, squared_error
from numpy.typing import NDArray

from anemone.compress import palettize as module
from anemone.compress.palettize import effective_group, palettize, palettize_blocks
from anemone.compress.spec import BITS
from anemone.compress.tensor import Lut
from anemone.errors import CheckpointError, RecipeError

LIMIT = 1.005


def weights(rows: int, columns: int, seed: int = 0) -> NDArray[np.float16]:
    """Heavy-tailed, as trained weights are."""
    return (np.random.default_rng(seed).standard_t(4, (rows, columns)) * 0.02).astype(np.float16)


def check_form(lut: Lut, shape: tuple[int, int], bits: int, group: int) -> None:
    assert lut.indices.shape == shape
    assert lut.indices.dtype == np.uint8
    assert lut.indices.max() < 1 << bits
    assert lut.table.shape == (shape[0] // group, 1 << bits)
    assert lut.table.dtype == np.float16
    assert np.isfinite(lut.table).all()
    assert (np.diff(lut.table.astype(np.float64), axis=1) >= 0).all()
    assert lut.group == group


def group_errors(lut: Lut, weight: NDArray[np.float16]) -> list[float]:
    squares = (lut.dequantise().astype(np.float64) - weight.astype(np.float64)) ** 2
    return list(squares.reshape(len(lut.table), -1).mean(axis=1))


@pytest.mark.parametrize("group", [1, 4, 8, 0])
@pytest.mark.parametrize("bits", BITS)
def test_each_group_is_within_half_a_percent_of_its_optimum(bits: int, group: int) -> None:
    weight = weights(16, 1000)
    lut = palettize(weight, bits, group)
    check_form(lut, (16, 1000), bits, group or 16)
    for error, rows in zip(group_errors(lut, weight), np.split(weight, len(lut.table)), strict=True):
        assert error <= LIMIT * best_errors(rows, 1 << bits)[1]


def test_indices_name_the_nearest_of_the_table() -> None:
    weight = weights(8, 2000)
    lut = palettize(weight, 4, 8)
    distance = np.abs(weight.astype(np.float64)[..., None] - lut.table[0].astype(np.float64))
    chosen = np.take_along_axis(distance, lut.indices[..., None].astype(np.int64), axis=2)[..., 0]
    np.testing.assert_array_equal(chosen, distance.min(axis=2))


@pytest.mark.parametrize(
    ("rows", "group", "effective"),
    [(120, 16, 15), (49155, 16, 15), (576, 16, 16), (576, 7, 6), (49155, 8, 5), (13, 8, 1), (6, 8, 6)],
)
def test_rows_that_the_group_does_not_divide_share_tables_evenly(rows: int, group: int, effective: int) -> None:
    assert effective_group(rows, group) == effective
    weight = weights(rows, 3 if rows > 1000 else 100)
    check_form(palettize(weight, 4, group), weight.shape, 4, effective)


def test_group_zero_is_the_whole_tensor() -> None:
    assert effective_group(49155, 0) == 49155
    weight = weights(15, 40)
    check_form(palettize(weight, 3, 0), weight.shape, 3, 15)


def awkward(columns: int = 512) -> NDArray[np.float16]:
    """Eight rows of a group: zero, constant, one outlier, subnormal, and ordinary ones."""
    weight = weights(8, columns)
    weight[1], weight[4] = 0, 0.25
    weight[2, 7] = 1e3
    weight[5] = np.random.default_rng(1).integers(-500, 500, columns) * 2.0**-24
    return weight


@pytest.mark.parametrize("bits", BITS)
def test_zero_constant_outlier_and_subnormal_rows_in_one_group(bits: int) -> None:
    weight = awkward()
    lut = palettize(weight, bits, 8)
    check_form(lut, weight.shape, bits, 8)
    dequantised = lut.dequantise()
    assert not dequantised[1].any()
    assert not np.signbit(dequantised[1]).any()
    if bits >= 3:
        assert dequantised[2, 7] == 1000
        assert np.abs(dequantised[4] - 0.25).max() < 0.01
    # the optimum among tables that hold a zero: zero weighs so much that it is a centroid
    heavy = np.where(weight.reshape(-1) == 0, 1e9, 1.0)
    best = best_centroids(weight, 1 << bits, heavy)
    assert np.abs(best).min() < 1e-6
    assert group_errors(lut, weight)[0] <= LIMIT * squared_error(weight.reshape(-1).astype(np.float64), best)


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_an_awkward_row_alone(rows: int) -> None:
    weight = awkward()[rows - 1 : rows]
    for bits in BITS:
        lut = palettize(weight, bits, 8)
        if np.unique(weight).size <= 1 << bits:
            np.testing.assert_array_equal(lut.dequantise(), weight)
        else:
            assert group_errors(lut, weight)[0] <= LIMIT * best_errors(weight, 1 << bits)[1]


@pytest.mark.parametrize("distinct", [1, 2, 15, 16])
def test_few_values_are_reproduced_exactly(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    weight = rng.choice(rng.standard_normal(distinct), (24, 50)).astype(np.float16)
    weight[8:16] = weights(8, 50)  # between groups of few values one of many
    lut = palettize(weight, 4, 8)
    check_form(lut, weight.shape, 4, 8)
    np.testing.assert_array_equal(lut.dequantise()[:8], weight[:8])
    np.testing.assert_array_equal(lut.dequantise()[16:], weight[16:])


def test_minus_zero_becomes_zero() -> None:
    lut = palettize(np.full((8, 4), -0.0, np.float16), 4, 8)
    assert not np.signbit(lut.dequantise()).any()
    assert not np.signbit(lut.table).any()


@pytest.mark.parametrize("group", [8, 0])
def test_blocks_threads_and_neighbours_change_nothing(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.concatenate([weights(64, 256), np.repeat(awkward(256), 2, axis=0), weights(16, 256, 5) * 1000])
    whole = palettize(weight, 4, group)
    monkeypatch.setattr(module, "BLOCK_VALUES", 3 * 8 * 256)
    for workers in (1, 2, 5):
        blocks = list(palettize_blocks(lambda rows: weight[rows], 96, 256, 4, group, workers=workers))
        assert len(blocks) == (4 if group else 1)
        np.testing.assert_array_equal(np.concatenate([block.indices for block in blocks]), whole.indices)
        np.testing.assert_array_equal(np.concatenate([block.table for block in blocks]), whole.table)
    if group:
        np.testing.assert_array_equal(palettize(weight[40:48], 4, 8).table, whole.table[5:6])


def test_a_group_larger_than_a_block_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weights(32, 500)
    monkeypatch.setattr(module, "BLOCK_VALUES", 4000)
    lut = palettize(weight, 6, 16, workers=2)
    check_form(lut, weight.shape, 6, 16)
    for error, rows in zip(group_errors(lut, weight), np.split(weight, 2), strict=True):
        assert error <= LIMIT * best_errors(rows, 64)[1]
    weight[20] = 0
    assert not palettize(weight, 3, 16).dequantise()[20].any()


def test_an_error_while_reading_ends_the_work() -> None:
    def read(rows: slice) -> NDArray[np.float16]:
        if rows.start >= 512:
            raise CheckpointError("the file ends early")
        return weights(rows.stop - rows.start, 4096)

    for workers in (1, 3):
        with pytest.raises(CheckpointError, match="ends early"):
            list(palettize_blocks(read, 2048, 4096, 2, 8, workers=workers))


def test_blocks_that_nobody_wants_are_not_made() -> None:
    seen = []

    def read(rows: slice) -> NDArray[np.float16]:
        seen.append(rows.start)
        return weights(rows.stop - rows.start, 4096)

    blocks = palettize_blocks(read, 1 << 20, 4096, 1, 8, workers=2)
    next(blocks)
    blocks.close()
    assert len(seen) <= 4


@pytest.mark.parametrize("bits", [0, 5, 7, 9, 16])
def test_widths_that_core_ml_lacks_are_refused(bits: int) -> None:
    with pytest.raises(RecipeError, match=f"{bits} bits"):
        palettize(weights(8, 16), bits, 8)


def test_wider_dtypes_are_narrowed_first() -> None:
    narrow = weights(8, 64).astype(ml_dtypes.bfloat16).astype(np.float16)
    for dtype in (ml_dtypes.bfloat16, np.float32):
        np.testing.assert_array_equal(palettize(narrow.astype(dtype), 4, 8).indices, palettize(narrow, 4, 8).indices)
    with pytest.raises(CheckpointError, match=r"^mlp\.up_proj\.weight has 2 values that fp16 cannot hold"):
        palettize(np.array([[7e4, 1], [2, -7e4]], ml_dtypes.bfloat16), 4, 1, name="mlp.up_proj.weight")
    for bad in (np.inf, np.nan):
        with pytest.raises(CheckpointError, match="1 values"):
            palettize(np.array([[bad, 1], [2, 3]], np.float16), 4, 1)


BIG = """
import sys, numpy as np
from anemone.compress.palettize import palettize_blocks
rows, columns, group = 151936, 1024, int(sys.argv[1])
some = (np.random.default_rng(0).standard_t(4, (4096, columns)) * 0.02).astype(np.float16)

def kb(field):
    return int(next(line for line in open("/proc/self/status") if line.startswith(field)).split()[1])

before = kb("VmHWM")
for block in palettize_blocks(lambda r: some[np.arange(r.start, r.stop) % 4096], rows, columns, 6, group, workers=2):
    pass
print((kb("VmHWM") - before) / 1000)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("group", [8, 0])
def test_a_large_head_needs_little_memory(group: int) -> None:
    """151936 x 1024 at 6 bits; in a process of its own."""
    done = subprocess.run([sys.executable, "-c", BIG, str(group)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 300  # MB; a table per tensor has its indices (156 MB) in one piece
