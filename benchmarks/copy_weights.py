"""The least that an FP16 conversion has to do: read bf16 weights through numpy, cast to fp16, write, fsync.

python benchmarks/copy_weights.py model.safetensors weights.bin
"""

import json
import os
import sys
from pathlib import Path

import ml_dtypes
import numpy as np


def copy(source: Path, target: Path) -> None:
    with source.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()
    header.pop("__metadata__", None)
    data = np.memmap(source, np.uint8, "r")
    with target.open("wb") as out:
        for entry in header.values():
            begin, end = entry["data_offsets"]
            values = data[start + begin : start + end].view(ml_dtypes.bfloat16)
            out.write(values.astype(np.float16).data)
        out.flush()
        os.fsync(out.fileno())


if __name__ == "__main__":
    copy(Path(sys.argv[1]), Path(sys.argv[2]))
