"""Files mapped into memory: read as arrays of bytes, and let go of again without closing them."""

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class MappedFiles:
    """Read-only views of whole files."""

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}

    def bytes(self, file: Path) -> NDArray[np.uint8]:
        """The file's bytes, without a copy."""
        if file not in self._maps:
            with file.open("rb") as stream:
                self._maps[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._maps[file], np.uint8)

    def release(self) -> None:
        """Take the pages that were read out of this process; they are read again when they are looked at again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)
