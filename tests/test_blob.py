"""The weight file against coremltools' own writer and reader."""

import numpy as np
import pytest

from anemone.errors import PackageError
from anemone.package.blob import TYPES, BlobWriter

storage = pytest.importorskip("coremltools.libmilstoragepython")

CALLS = {"fp16": "fp16", "fp32": "float"} | {name: name for name in TYPES if not name.startswith("fp")}
SUB_BYTE = [name for name, kind in TYPES.items() if kind.bits < 8]


def random_values(dtype, count, seed=0):
    kind, rng = TYPES[dtype], np.random.default_rng(seed)
    if dtype.startswith("fp"):
        return rng.standard_normal(count).astype(kind.numpy)
    low, high = (-(2 ** (kind.bits - 1)), 2 ** (kind.bits - 1)) if dtype.startswith("int") else (0, 2**kind.bits)
    return rng.integers(low, high, count, dtype=np.int64).astype(kind.numpy)


def write_with_coremltools(path, tensors):
    writer = storage._BlobStorageWriter(str(path))
    for dtype, values in tensors:
        data = values.view(np.uint16) if dtype == "fp16" else values
        getattr(writer, f"write_{CALLS[dtype]}_data")(data)
    del writer
    return path.read_bytes()


def read_with_coremltools(path, dtype, offset):
    values = getattr(storage._BlobStorageReader(str(path)), f"read_{CALLS[dtype]}_data")(offset)
    return np.asarray(values).view(np.float16) if dtype == "fp16" else np.asarray(values)


def in_blocks(values, sizes):
    start = 0
    for size in sizes:
        yield values[start : start + size]
        start += size
    yield values[start:]


def interrupted(block):
    yield block
    raise KeyboardInterrupt


def test_header_and_record_bytes(tmp_path):
    path = tmp_path / "weight.bin"
    with BlobWriter(path) as blob:
        assert blob.write("fp16", 2, np.array([1, -2], np.float16)) == 64
        assert blob.write("uint3", 11, (np.arange(11) % 8).astype(np.uint8)) == 192
    written = path.read_bytes()
    assert written[:64].hex() == "0200000002000000" + "00" * 56
    assert written[64:128].hex() == "efbeadde0100000004000000000000008000000000000000" + "00" * 40
    assert written[128:192].hex() == "003c00c0" + "00" * 60
    record = "efbeadde0c000000050000000000000000010000000000000700000000000000"
    assert written[192:256].hex() == record + "00" * 32
    assert written[256:].hex() == "88c6fa8800"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 1000, 300_001])
def test_same_bytes_as_coremltools(tmp_path, dtype, count):
    values = random_values(dtype, count)
    with BlobWriter(tmp_path / "ours") as blob:
        offset = blob.write(dtype, count, values)
    assert (tmp_path / "ours").read_bytes() == write_with_coremltools(tmp_path / "theirs", [(dtype, values)])
    np.testing.assert_array_equal(read_with_coremltools(tmp_path / "ours", dtype, offset), values)


def test_many_tensors_make_the_same_file(tmp_path):
    rng = np.random.default_rng(1)
    dtypes = rng.choice(list(TYPES), 60)
    tensors = [(str(t), random_values(t, int(rng.integers(10, 500)), seed)) for seed, t in enumerate(dtypes)]
    with BlobWriter(tmp_path / "ours") as blob:
        offsets = [blob.write(dtype, values.size, values) for dtype, values in tensors]
    assert (tmp_path / "ours").read_bytes() == write_with_coremltools(tmp_path / "theirs", tensors)
    for (dtype, values), offset in zip(tensors, offsets, strict=True):
        np.testing.assert_array_equal(read_with_coremltools(tmp_path / "ours", dtype, offset), values)


@pytest.mark.parametrize("dtype", [*SUB_BYTE, "fp16", "int32"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7, 9), (8, 16), (0, 13), (262_143, 1, 6), ()])
def test_blocks_of_any_size_make_the_same_file(tmp_path, dtype, sizes):
    values = random_values(dtype, sum(sizes) + 21)
    with BlobWriter(tmp_path / "blocks") as blob, blob.tensor(dtype, values.size) as tensor:
        for block in in_blocks(values, sizes):
            tensor.write(block)
    with BlobWriter(tmp_path / "whole") as blob:
        assert blob.write(dtype, values.size, values) == tensor.offset
    assert (tmp_path / "blocks").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("order", ["C", "F", "strided", "wide"])
def test_memory_layout_does_not_matter(tmp_path, order):
    values = random_values("uint4", 6 * 35).reshape(6, 5, 7)
    layouts = {"C": values, "F": np.asfortranarray(values), "strided": np.repeat(values, 2, axis=2)[:, :, ::2]}
    wide = random_values("fp16", 2 * 3_000_000).reshape(3_000_000, 2).T
    given, dtype = (wide, "fp16") if order == "wide" else (layouts[order], "uint4")
    with BlobWriter(tmp_path / "ours") as blob:
        blob.write(dtype, given.size, given)
    plain = np.ascontiguousarray(given).reshape(-1)
    assert (tmp_path / "ours").read_bytes() == write_with_coremltools(tmp_path / "theirs", [(dtype, plain)])


def test_equal_constants_are_stored_once(tmp_path):
    ones, other = np.ones(50, np.float16), np.arange(50, dtype=np.float16)
    with BlobWriter(tmp_path / "weight.bin") as blob:
        first = blob.write_once("fp16", ones)
        assert blob.write_once("fp16", other) != first
        assert blob.write_once("fp16", ones.copy()) == first
        assert blob.write_once("uint16", ones.view(np.uint16)) != first
        assert blob.count == 3
    assert (tmp_path / "weight.bin").read_bytes()[:4] == b"\3\0\0\0"
    np.testing.assert_array_equal(read_with_coremltools(tmp_path / "weight.bin", "fp16", first), ones)


def test_wrong_values_are_refused_and_leave_nothing(tmp_path):
    with BlobWriter(tmp_path / "weight.bin") as blob:
        blob.write("fp16", 20, np.ones(20, np.float16))
        size = blob.size
        with pytest.raises(PackageError, match="outside 0 to 15"):
            blob.write("uint4", 3, np.array([1, 16, 3], np.uint8))
        with pytest.raises(PackageError, match="outside -8 to 7"):
            blob.write("int4", 3, np.array([-9, 1, 3], np.int8))
        with pytest.raises(PackageError, match="1 values fewer"):
            blob.write("fp16", 4, np.ones(3, np.float16))
        with pytest.raises(PackageError, match="2 values more"):
            blob.write("fp16", 4, [np.ones(3, np.float16)] * 2)
        with pytest.raises(PackageError, match="from float16, not float32"):
            blob.write("fp16", 4, np.ones(4, np.float32))
        with pytest.raises(KeyboardInterrupt):
            blob.write("fp16", 4, interrupted(np.ones(2, np.float16)))
        assert (blob.size, blob.count) == (size, 1)
        blob.write("uint8", 30, np.arange(30, dtype=np.uint8))
    expected = write_with_coremltools(
        tmp_path / "theirs", [("fp16", np.ones(20, np.float16)), ("uint8", np.arange(30, dtype=np.uint8))]
    )
    assert (tmp_path / "weight.bin").read_bytes() == expected
