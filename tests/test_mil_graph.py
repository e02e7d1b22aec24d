"""The decoder's own programs: written by us and by coremltools' Builder, they are the same packages."""

import coremltools as ct
import numpy as np
import pytest
from mil_truth import convert, load, normal, write, write_with_coremltools

from anemone.architectures.base import DecoderConfig, Rope
from anemone.compress.tensor import Dense, Lut
from anemone.graph.functions import Shapes, chunk_program, embeddings_program, head_program

CONFIG = DecoderConfig(
    model_type="qwen3",
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=48,
    vocab=90,
    norm_eps=1e-6,
    activation="silu",
    rope=Rope("default", 10000.0, tuple(10000.0 ** (-np.arange(8) / 8))),
    max_positions=64,
    tied=True,
    qkv_bias=True,
    qk_norm=True,
)


def tensors_for(program, bits=4, group=2):
    rng, tensors = np.random.default_rng(0), {}
    for key, weight in program.weights().items():
        if weight.role in ("linear", "head"):
            rows, columns = weight.shape[:2]
            table = np.sort(rng.standard_normal((rows // group, 2**bits)).astype(np.float16), axis=1)
            tensors[key] = Lut(rng.integers(0, 2**bits, (rows, columns), dtype=np.uint8), table, bits)
        else:
            values = weight.constant if weight.constant is not None else rng.standard_normal(weight.shape)
            tensors[key] = Dense(np.asarray(values, np.float16))
    return tensors


PROGRAMS = {
    "embeddings": embeddings_program(CONFIG, Shapes(16, 4)),
    "first chunk": chunk_program(CONFIG, Shapes(16, 4), range(1)),
    "last chunk": chunk_program(CONFIG, Shapes(16, 4), range(1, 2)),
    "whole, mask write": chunk_program(CONFIG, Shapes(16, 4, kv_write="mask"), range(2)),
    "head": head_program(CONFIG, Shapes(16, 4), 5, argmax=False),
    "argmax head": head_program(CONFIG, Shapes(16, 4), 5, argmax=True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_decoder_programs_equal_coremltools(tmp_path, name):
    program = PROGRAMS[name]
    tensors = tensors_for(program)
    write(tmp_path / "ours.mlpackage", program, tensors)
    write_with_coremltools(program, tensors, tmp_path / "theirs.mlpackage")
    assert normal(tmp_path / "ours.mlpackage") == normal(tmp_path / "theirs.mlpackage")


@pytest.mark.parametrize("name", PROGRAMS)
def test_decoder_programs_pass_coremltools_default_pipeline(tmp_path, name):
    program = PROGRAMS[name]
    if any(function.flexible for function in program.functions):
        pytest.skip("coremltools wants enumerated shapes stated again")
    write(tmp_path / "ours.mlpackage", program, tensors_for(program))
    passed = convert(load(tmp_path / "ours.mlpackage"), tmp_path / "passed.mlpackage", ct.PassPipeline.DEFAULT)
    assert normal(passed)["description"] == normal(tmp_path / "ours.mlpackage")["description"]
