"""What executing a layer of Llama-8B's size costs in memory."""

import subprocess
import sys

import numpy as np
import pytest
from shared_files import shared

from anemone.architectures.resolve import resolve
from anemone.compress.tensor import Lut
from anemone.graph.functions import Shapes, chunk_program
from anemone.package.mlpackage import Description, PackageWriter

RUN = """
import re, sys, threading, time
from pathlib import Path
import numpy as np
from anemone.execute import Program

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

peaks = [0]
def watch():
    while True:
        peaks.append(max(peaks.pop(), anonymous()))
        time.sleep(0.002)

threading.Thread(target=watch, daemon=True).start()
program = Program(sys.argv[1], weights="stream")
inputs = {
    "hidden_states": np.random.default_rng(0).standard_normal((1, 64, 4096)).astype(np.float16),
    "position_ids": np.arange(64),
    "causal_mask": np.where(np.arange(512) <= np.arange(64)[:, None], 0, -40000).astype(np.float16)[None, None],
    "current_pos": [0],
}
(hidden,) = program.predict(inputs, program.new_state(), "prefill").values()
assert np.isfinite(hidden).all()
print(max(peaks[0], anonymous()))
"""


def llama_8b_layer(path):
    """One LUT4 layer with random indices: 218 million weights."""
    import dataclasses
    import json

    config = json.loads(shared("cases/configs/llama-3.1-8b-instruct.json").read_text())
    program = chunk_program(dataclasses.replace(resolve(config).config, layers=2), Shapes(512, 64), range(1))
    rng = np.random.default_rng(0)

    def palettised(rows, columns):
        for start in range(0, rows, 512):
            count = min(512, rows - start)
            table = np.sort(rng.standard_normal((count // 8, 16)).astype(np.float16) / 64, axis=1)
            yield Lut(rng.integers(0, 16, (count, columns), dtype=np.uint8), table, 4)

    with PackageWriter(path) as package:
        for key, weight in program.weights().items():
            if weight.role == "linear":
                package.add_lut(key, weight.shape, palettised(*weight.shape[:2]))
            else:
                values = np.ones(weight.shape, np.float16) if weight.constant is None else weight.constant
                package.add_dense(key, weight.shape, values)
        package.finish(program, Description(short="one layer"))
    return path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_layer_of_llama_8b_takes_little_memory(tmp_path):
    package = llama_8b_layer(tmp_path / "layer.mlpackage")
    done = subprocess.run([sys.executable, "-c", RUN, package], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150_000  # KB; the weights alone would take 870 MB as fp32
