"""docs/ane-forms.md has a row for every form of operation that a package can contain, and none for others."""

import re
from pathlib import Path
from typing import Any

import pytest
from programs import block, computed, constant, constants, functions, operand, types
from tiny import MODEL_TYPES

PAGE = Path(__file__).parents[1] / "docs/ane-forms.md"
RECIPES = (
    {}, {"kv_write": "mask"}, {"argmax": True}, {"silu": "native"}, {"score": False, "batch": 1}, {"head_split": 1},
)  # fmt: skip
CHECKPOINTS = (
    *((name, {}) for name in MODEL_TYPES),
    ("llama", {"qkv_bias": True, "mlp_bias": True}),
    ("llama", {"kv_heads": 4}),
    ("mistral", {"kv_heads": 1}),
    ("qwen3", {"head_dim": 32, "qkv_bias": True, "tied": False}),
)
AXES = {"axis", "axes", "perm"}


def form(op: Any, known: dict[str, Any], shapes: dict[str, tuple[str, tuple[int, ...]]]) -> tuple[str, str]:
    """What decides whether hardware takes an operation: its kind, type, ranks, axes and run-time operands."""
    first = next(operand(op, key)[0] for key in ("x", "values", "data", "input") if operand(op, key))
    dtype, shape = shapes[op.outputs[0].name if op.outputs else first]
    rank = len(shapes[first][1])
    words = [dtype, f"rank {rank}" + (f" to {len(shape)}" if len(shape) != rank else "")]
    for name in sorted(AXES & set(op.inputs)):
        value = constant(op, name, known)
        words.append(f"{name} {','.join(str(v % rank if name != 'perm' else v) for v in value)}")
    if op.type == "slice_by_index":
        before = shapes[operand(op, "x")[0]][1]
        cut = [i for i, (a, b) in enumerate(zip(before, shape, strict=True)) if a != b]
        start = [constant(op, "begin", known)[i] for i in cut]
        words.append(f"cuts axis {','.join(map(str, cut))}" + ("" if any(start) else " from 0"))
    if op.type == "slice_update":
        words.append("constant bounds" if constant(op, "begin", known) else "run-time bounds")
    if op.type == "matmul":
        words.append("transpose_y" if constant(op, "transpose_y", known)[0] else "plain")
    if op.type == "conv":
        words.append("1x1" + (", bias" if "bias" in op.inputs else ""))
    return op.type, ", ".join(words)


def emitted(workshop: Any) -> set[tuple[str, str]]:
    found = set()
    for model_type, options in CHECKPOINTS:
        source = workshop.checkpoint(model_type, **options)
        for recipe in RECIPES:
            for package in workshop.bundle(source, **recipe, chunks=2).glob("*.mlpackage"):
                for function in functions(package).values():
                    known, shapes = constants(function), types(function)
                    found |= {form(op, known, shapes) for op in computed(function)}
                    assert block(function).outputs
    return found


def documented() -> dict[tuple[str, str], str]:
    """(operation, form) -> evidence, from the page's first table."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    return {(kind, text.strip()): evidence.strip() for kind, text, evidence in rows}


@pytest.fixture(scope="module")
def forms(workshop):
    return emitted(workshop)


def test_every_emitted_form_has_a_row(forms):
    assert not sorted(forms - set(documented()))


def test_every_row_is_emitted(forms):
    assert not sorted(set(documented()) - forms)


def test_every_row_gives_its_evidence_or_says_that_there_is_none():
    assert all(evidence for evidence in documented().values())


def test_no_slice_of_the_last_axis_starts_beyond_zero(forms):
    """Such a slice takes a path on M1 and M2 that turns values of 4,095 and more into infinity."""
    slices = [text for kind, text in forms if kind == "slice_by_index"]
    assert slices
    assert not [text for text in slices if re.search(r"rank 4.*cuts axis 3$", text)]
