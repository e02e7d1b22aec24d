"""Verification must see faults that only the functions for one row have, which are the ones that decode."""

import numpy as np
import pytest

from anemone.evaluate import packaged
from anemone.evaluate.divergence import relative_errors
from anemone.evaluate.verify import verify


@pytest.fixture(scope="module")
def bundle(workshop):
    source = workshop.checkpoint("llama")
    return workshop.bundle(source), source


def one_row_gate(bundle):
    report = verify(*bundle, tokens=40)
    gates = {gate.name: gate for gate in report.gates}
    assert [name for name, gate in gates.items() if not gate.passed] in ([], ["one_row_error"])
    return gates["one_row_error"].passed


def spoil(monkeypatch, kind, method, is_one_row, change):
    original = getattr(kind, method)

    def changed(self, *arguments, **named):
        out = original(self, *arguments, **named)
        return change(out) if is_one_row(*arguments, **named) else out

    monkeypatch.setattr(kind, method, changed)


CHANGES = {"a scale": lambda out: out * np.float32(0.7), "NaN": lambda out: out * np.float32("nan")}


def test_a_sound_bundle_passes(bundle):
    assert one_row_gate(bundle)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_fault_in_infer_is_seen(bundle, change, monkeypatch):
    spoil(monkeypatch, packaged.PackagedChunk, "_call", lambda *a, **k: a[2] == "infer", change)
    assert not one_row_gate(bundle)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_fault_in_the_head_s_main_is_seen(bundle, change, monkeypatch):
    spoil(monkeypatch, packaged.PackagedHead, "_logits", lambda *a, **k: a[2] is None, change)
    assert not one_row_gate(bundle)


def test_relative_errors_see_scale_zero_and_nan():
    reference = np.array([[3.0, 4.0], [0, 0], [0, 0], [1, 0], [1, 0]])
    other = np.array([[1.5, 2.0], [0, 0], [1, 0], [np.nan, 0], [1, 0]])
    np.testing.assert_array_equal(relative_errors(reference, other), [0.5, 0, np.inf, np.nan, 0])
