"""Decoding for a long time: memory stays flat, and every run gives the same bits."""

import json
import os
import subprocess
import sys

import pytest
from test_accept_real_models import smollm2

RUN = """
import hashlib, json, re, sys
from pathlib import Path
from anemone.execute import Program
from anemone.package.bundle import read_bundle
from anemone.runtime.bundle_engine import BundleEngine

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

engine = BundleEngine(read_bundle(sys.argv[1]), Program)
state, digest, seen = engine.new_state(), hashlib.sha256(), []
engine.prefill(state, list(range(1, engine.batch + 1)), 0)
for index in range(engine.context + int(sys.argv[2])):  # the first round touches all of the cache
    digest.update(engine.step(state, index % 97, index % engine.context).tobytes())
    if index >= engine.context:
        seen.append(resident())
for name in state:
    digest.update(state[name].tobytes())
print(json.dumps({"digest": digest.hexdigest(), "growth": max(seen) - min(seen)}))
"""


def decode(bundle, steps: int) -> dict:
    command = [sys.executable, "-c", RUN, bundle, str(steps)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # more would wait for each other
    done = subprocess.run(command, env=one_thread, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_two_runs_give_the_same_bits(model_type, workshop):
    bundle = workshop.bundle(workshop.checkpoint(model_type))
    first, second = decode(bundle, 300), decode(bundle, 300)
    assert first["digest"] == second["digest"]
    assert first["growth"] < 5


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_smollm2_decodes_2000_tokens_in_the_same_memory(workshop):
    bundle = workshop.bundle(smollm2(), context=512, batch=64)
    first, second = decode(bundle, 2000), decode(bundle, 2000)
    assert first["digest"] == second["digest"]
    assert max(first["growth"], second["growth"]) < 5
