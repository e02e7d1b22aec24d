"""RMSNorm as it is written into packages: large values, zero rows, small epsilons, against torch in float64."""

import numpy as np
import pytest
import torch
from tiny import load_weights, make_tiny, truth_logits

from anemone.execute import Program
from anemone.graph import ir
from anemone.graph.builder import Builder
from anemone.graph.norm import rms_norm
from anemone.package.mlpackage import Description, PackageWriter

ROWS = 4


def packaged_norm(path, gain, epsilon):
    """A package that does nothing else: x (1, H, 1, S) -> its RMSNorm."""
    b = Builder("main")
    y = rms_norm(b, b.input("x", "fp16", (1, gain.size, 1, ROWS)), "norm.weight", epsilon)
    program = ir.Program((b.finish([y]),))
    with PackageWriter(path) as package:
        package.add_dense("norm.weight", (1, gain.size, 1, 1), gain)
        package.finish(program, Description())
    runner = Program(path)

    def run(rows):  # (S, H)
        (out,) = runner.predict({"x": rows.T[None, :, None, :].astype(np.float16)}).values()
        return out[0, :, 0, :].T.astype(np.float64)

    return run


def truth(rows, gain, epsilon):
    x = torch.tensor(rows.astype(np.float16).astype(np.float64))
    return torch.nn.functional.rms_norm(x, (x.shape[1],), torch.tensor(gain.astype(np.float64)), epsilon).numpy()


@pytest.mark.parametrize("size", [4096, 8192, 576])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_large_values_and_zero_rows(tmp_path, size, epsilon):
    rng = np.random.default_rng(0)
    gain = (1 + 0.2 * rng.standard_normal(size)).astype(np.float16)
    rows = rng.uniform(-300, 300, (ROWS, size))
    rows[0] = np.where(rng.random(size) < 0.5, 300, -300)
    rows[1] = 0
    rows[2] = rng.standard_normal(size) * 0.01
    found = packaged_norm(tmp_path / "norm.mlpackage", gain, epsilon)(rows)
    expected = truth(rows, gain, epsilon)
    assert np.isfinite(found).all()
    assert np.array_equal(found[1], np.zeros(size))
    for i in (0, 2, 3):
        assert np.linalg.norm(found[i] - expected[i]) < 0.01 * np.linalg.norm(expected[i])


def test_the_epsilon_counts_for_small_values(tmp_path):
    rng = np.random.default_rng(0)
    gain = np.ones(512, np.float16)
    rows = rng.standard_normal((ROWS, 512)) * 1e-3
    results = {}
    for epsilon in (1e-5, 1e-6):
        results[epsilon] = packaged_norm(tmp_path / f"{epsilon}.mlpackage", gain, epsilon)(rows)
        expected = truth(rows, gain, epsilon)
        assert np.linalg.norm(results[epsilon] - expected) < 0.01 * np.linalg.norm(expected)
    assert np.linalg.norm(results[1e-6]) > 2 * np.linalg.norm(results[1e-5])


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_the_config_s_epsilon_reaches_the_package(workshop, tmp_path, model_type):
    import json

    from bundles import Client, cosines, some_ids
    from tiny import write_weights

    ids = some_ids(12)
    logits = {}
    for epsilon in (1e-5, 1e-6):
        source = make_tiny(tmp_path / str(epsilon), model_type)
        weights = load_weights(source)
        weights["model.embed_tokens.weight"] *= 1e-3  # so small that the epsilon is felt
        write_weights(source, weights)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**config, "rms_norm_eps": epsilon}))
        logits[epsilon] = Client(workshop.bundle(source)).decode(ids)
        assert cosines(logits[epsilon], truth_logits(source, ids)).min() >= 0.9999
    assert cosines(logits[1e-5], logits[1e-6]).min() < 0.999
