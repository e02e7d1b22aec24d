"""Traces and profiles: their numbers against numpy, and which forms they flag in the ane mode."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("coremltools")

import naive_forms
from bundles import FP16, weight_file
from execute_helpers import Case, Numbers, case_inputs, write_cases
from naive_forms import graph_with
from test_accept_real_models import smollm2

from anemone.conversion.convert import convert
from anemone.execute import Program, profile, trace
from anemone.recipe import Recipe

LENGTH, CONTEXT = 8, 64
ACTIVATIONS = {
    "silu": naive_forms.native_silu,
    "softplus": naive_forms.native_softplus,
    "log(1 + exp)": naive_forms.plain_softplus,
}
NORMS = {"x * x": naive_forms.plain_norm, "x / 64": naive_forms.scaled_norm}


def chunk(source: Path, out: Path, **forms) -> Path:
    """The decoder package of a conversion that writes these forms."""
    with graph_with(**forms):
        convert(source, out, Recipe(**FP16, context=CONTEXT, batch=LENGTH, chunks=1), verification=False)
    (package,) = out.glob("*_chunk_01of01.mlpackage")
    return package


def chunk_inputs(hidden: np.ndarray) -> dict[str, np.ndarray]:
    """Rows (S, H) at the start of an empty cache."""
    rows = np.arange(len(hidden), dtype=np.int32)
    mask = np.where(np.arange(CONTEXT) <= rows[:, None], 0, -np.inf).astype(np.float16)
    hidden = hidden[None].astype(np.float16)
    return {"hidden_states": hidden, "position_ids": rows, "causal_mask": mask[None, None], "current_pos": rows[:1]}


def traced(package: Path, hidden: np.ndarray, numerics: str = "ane:m1"):
    program = Program(package, numerics=numerics)
    return trace(program, chunk_inputs(hidden), program.new_state(), "score")


@pytest.fixture(scope="module")
def source(workshop) -> Path:
    return workshop.checkpoint("llama", layers=2)


@pytest.fixture(scope="module")
def ours(source, tmp_path_factory) -> Path:
    return chunk(source, tmp_path_factory.mktemp("ours") / "out")


def rows(scale: float, seed: int = 0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal((LENGTH, 64))


# Numbers.


def test_numbers_of_a_trace(tmp_path):
    numbers = Numbers(0)
    x, y = numbers.real(4, 50).astype(np.float16), numbers.real(50, 3).astype(np.float16)
    small = np.array([1.0, 2.0**-12], np.float16)
    cases = [
        Case("matmul", {"x": x, "y": y}),
        Case("mul", {"x": small, "y": small}),
        Case("mul", {"x": np.float16([300]), "y": np.float16([300])}),
    ]
    package = write_cases(tmp_path / "p.mlpackage", cases)
    found = trace(Program(package), case_inputs(cases))
    by_name = {op.name: op for op in found.ops}
    product, exact = by_name["matmul_0"], x.astype(np.float64) @ y.astype(np.float64)
    noise = (x.astype(np.float32) @ y.astype(np.float32)).astype(np.float16) - exact
    assert product.snr_db == pytest.approx(10 * np.log10((exact**2).sum() / (noise**2).sum()), abs=0.2)
    assert product.own_snr_db == pytest.approx(product.snr_db)
    assert product.max_abs == pytest.approx(np.abs(exact).max(), rel=1e-3)
    assert product.bytes_read == x.nbytes + y.nbytes
    assert by_name["mul_0"].subnormal == 0.5
    assert by_name["mul_1"].inf == 1
    assert [(flag.op, flag.rule) for flag in found.flags] == [("mul_1", "overflow")]
    assert found.first_break is found.flags[0]
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["first_break"]["op"] == "mul_1"


@pytest.mark.parametrize("numerics", ["float16", "float32", "ane:m2"])
def test_a_trace_computes_what_predict_computes(ours, numerics):
    program, hidden = Program(ours, numerics=numerics), rows(1.0)
    states = [program.new_state() for _ in range(2)]
    found = trace(program, chunk_inputs(hidden), states[0], "score")
    expected = program.predict(chunk_inputs(hidden), states[1], "score")
    assert found.outputs.keys() == expected.keys()
    assert all(np.array_equal(found.outputs[name], value) for name, value in expected.items())
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    assert len(found.ops) == len(program.graph("score").body.ops)
    if numerics == "float32":
        assert all(op.snr_db is None for op in found.ops)


def test_a_profile_counts_operations_and_weights(ours):
    program = Program(ours)
    found = profile(program, chunk_inputs(rows(1.0)), program.new_state(), "score", runs=2)
    kinds = {kind.kind: kind for kind in found.kinds}
    assert kinds["conv"].calls == 2 * 7
    assert sum(kind.seconds for kind in found.kinds) == pytest.approx(found.seconds)
    matrices = 2 * sum(program.weight(name).size for name in program.weight_names("score") if "proj" in name)
    assert kinds["conv"].weight_bytes == matrices
    assert matrices < found.weight_bytes < weight_file(ours).stat().st_size
    json.dumps(found.as_dict(), allow_nan=False)


# Forms.


@pytest.mark.parametrize("scale", [0.02, 1.0, 1000.0])
@pytest.mark.parametrize("chip", ["m1", "m5"])
def test_our_forms_are_not_flagged(ours, scale, chip):
    assert not traced(ours, rows(scale), f"ane:{chip}").flags


def test_a_safe_softplus_is_not_flagged(source, tmp_path):
    assert not traced(chunk(source, tmp_path / "out", activation=naive_forms.safe_softplus), rows(1.0)).flags


@pytest.mark.parametrize("activation", ["silu", "softplus"])
def test_native_functions_are_flagged(source, tmp_path, activation):
    package = chunk(source, tmp_path / "out", activation=ACTIVATIONS[activation])
    flags = traced(package, rows(1.0)).flags
    assert {(flag.kind, flag.rule, flag.severity) for flag in flags} >= {(activation, "native", "error")}
    assert "tanh" in flags[0].message or "relu" in flags[0].message
    assert not [flag for flag in traced(package, rows(1.0), "float16").flags if flag.rule == "native"]


@pytest.mark.parametrize(("norm", "scale", "rule"), [("x * x", 1000.0, "overflow"), ("x / 64", 0.02, "snr")])
def test_naive_norms_are_flagged_where_they_break(source, tmp_path, norm, scale, rule):
    found = traced(chunk(source, tmp_path / "out", norm=NORMS[norm]), rows(scale))
    broken = found.first_break
    assert (broken.kind, broken.rule) == ("mul", rule)
    assert broken.op.startswith("layer_0_")


# SmolLM2.


@pytest.fixture(scope="module")
def smollm2_rows() -> np.ndarray:
    """Embeddings of the first words of a text."""
    from shared_files import shared
    from tiny import load_weights
    from tokenizers import Tokenizer

    text = shared("data/wikitext2-test.txt").read_text()[:1000]
    ids = Tokenizer.from_file(str(smollm2() / "tokenizer.json")).encode(text).ids[:LENGTH]
    return load_weights(smollm2())["model.embed_tokens.weight"][ids].astype(np.float32)


@pytest.mark.slow
def test_our_forms_are_not_flagged_on_smollm2(smollm2_rows, tmp_path):
    found = traced(chunk(smollm2(), tmp_path / "out"), smollm2_rows)
    assert not found.flags
    assert min(op.snr_db for op in found.ops if op.snr_db is not None) > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("silu", "native"), ("softplus", "native"), ("log(1 + exp)", "overflow"), ("x * x", "overflow"),
        ("x / 64", "overflow"),
    ],
)
def test_naive_forms_are_flagged_on_smollm2(smollm2_rows, tmp_path, name, rule):
    forms = {"activation": ACTIVATIONS.get(name), "norm": NORMS.get(name)}
    found = traced(chunk(smollm2(), tmp_path / "out", **forms), smollm2_rows)
    assert rule in {flag.rule for flag in found.flags}
