"""The parts of a bundle, executed on many rows: what verification compares with the reference.

Everything is found through the executor's own reader; nothing of the graph builder or the package writer is used.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anemone.evaluate.divergence import relative_errors
from anemone.execute import Program, State
from anemone.package.bundle import Bundle
from anemone.reference.ops import linear
from anemone.runtime.bundle_engine import output

Rows: TypeAlias = NDArray[np.float32]  # (rows, channels)

HIDDEN = np.float16(-40000)
PALETTISED = "_palettized"
"""End of a palettised weight's name in a package."""

PROBES = 4
"""Rows of a run on which the functions for one row are compared with those for a batch."""


class Stored(Protocol):
    """A package whose weights are known by their checkpoint's names."""

    def weight(self, name: str) -> NDArray[Any]: ...

    def palettised(self, name: str) -> bool: ...


class PackagedEmbeddings:
    def __init__(self, path: Path, batch: int) -> None:
        self._program, self._batch = Program(path, weights="stream"), batch

    def probe(self, ids: NDArray[np.int32], hidden: Rows) -> float:
        """The worst relative error to ``hidden`` of some ids that are given one at a time."""
        positions = probes(len(ids))
        again = [_rows(self._program.predict({"input_ids": ids[None, p : p + 1]})["hidden_states"]) for p in positions]
        return float(np.max(relative_errors(hidden[positions], np.concatenate(again))))

    def run(self, ids: NDArray[np.int32]) -> Rows:
        """(T,) token ids -> (T, H)."""
        outputs = []
        for start in range(0, len(ids), self._batch):
            rows = ids[start : start + self._batch]
            inputs = {"input_ids": _pad(rows, self._batch)[None]}
            outputs.append(_rows(self._program.predict(inputs)["hidden_states"])[: len(rows)])
        return np.concatenate(outputs)

    def weight(self, name: str) -> NDArray[Any]:
        return decoded(self._program, name, None)

    def palettised(self, name: str) -> bool:
        return is_palettised(self._program, name, None)


@dataclass(frozen=True)
class ChunkRun:
    """``output`` (T, H), the hidden states after each layer, and the one-row function's worst relative error."""

    output: Rows
    layers: Mapping[int, Rows]
    one_row_error: float


class PackagedChunk:
    """A decoder package. ``last``: its batch output comes from function score, or else from infer, row by row."""

    def __init__(self, path: Path, context: int, batch: int, last: bool) -> None:
        self._program = Program(path, weights="stream")
        self._context, self._batch = context, batch
        self._function = "prefill"
        if last:
            self._function = "score" if "score" in self._program.functions else "infer"
        names = self._program.weight_names("infer")
        found = {int(match[1]) for name in names if (match := re.match(r"model_layers_(\d+)_", name))}
        self.layers = range(min(found), max(found) + 1)

    def weight(self, name: str) -> NDArray[Any]:
        return decoded(self._program, name, "infer")

    def palettised(self, name: str) -> bool:
        return is_palettised(self._program, name, "infer")

    def run(self, hidden: Rows) -> ChunkRun:
        """One window of hidden states (T, H), positions from 0 on."""
        seen: dict[int, list[Rows]] = {layer: [] for layer in self.layers}

        def observe(name: str, kind: str, outputs: Mapping[str, NDArray[Any]]) -> None:
            for output, value in outputs.items():
                if match := re.fullmatch(r"layer_(\d+)_output", output):
                    seen[int(match[1])].append(value[0, :, 0, :].T.astype(np.float32))

        output = self._sweep(hidden, self._function, self._program.new_state(), observe)
        layers = {layer: np.concatenate(rows)[: len(hidden)] for layer, rows in seen.items()}
        return ChunkRun(output, layers, self._probe(hidden, output))

    def _probe(self, hidden: Rows, output: Rows) -> float:
        """Fill a cache through prefill, then ask infer for some rows again: the worst relative error."""
        state = self._program.new_state()
        self._sweep(hidden, "prefill", state)
        positions = probes(len(hidden))
        again = np.concatenate([self._call(hidden[p : p + 1], p, "infer", state) for p in positions])
        return float(np.max(relative_errors(output[positions], again)))

    def _sweep(self, hidden: Rows, function: str, state: State, observe: Callable[..., None] | None = None) -> Rows:
        step = 1 if function == "infer" else self._batch
        outputs = [
            self._call(hidden[start : start + step], start, function, state, observe)
            for start in range(0, len(hidden), step)
        ]
        return np.concatenate(outputs)[: len(hidden)]

    def _call(
        self, rows: Rows, position: int, function: str, state: State, observe: Callable[..., None] | None = None
    ) -> Rows:
        count = 1 if function == "infer" else self._batch
        positions = np.arange(position, position + count, dtype=np.int32)
        visible = np.arange(self._context) <= positions[:, None]
        inputs = {
            "hidden_states": _pad(rows, count)[None],
            "position_ids": positions,
            "causal_mask": np.where(visible, np.float16(0), HIDDEN)[None, None],  # (1, 1, S, context)
            "current_pos": positions[:1],
        }
        outputs = self._program.predict(inputs, state, function, observe)
        return _rows(outputs["output_hidden_states"])


class PackagedHead:
    """The LM head: logits of batches of rows, or of single rows where it has no batch function.

    ``has_logits`` is false for a head that only ever gives its best tokens.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._program = Program(bundle.lm_head, weights="stream")
        self.has_logits = bundle.has_score or not bundle.argmax
        self._parts = len(bundle.head_sizes)
        self._offsets = np.cumsum((0, *bundle.head_sizes[:-1]))  # first token of each part
        self._function = "score" if bundle.has_score else None
        self._batch = bundle.batch if bundle.has_score else 1

    def run(self, hidden: Rows) -> Rows:
        """(T, H) -> (T, vocab)."""
        return np.concatenate(
            [
                self._logits(hidden[start : start + self._batch], self._batch, self._function)
                for start in range(0, len(hidden), self._batch)
            ]
        )

    def probe(self, hidden: Rows, logits: Rows) -> float:
        """The worst relative error to ``logits`` of some rows that are given one at a time."""
        positions = probes(len(hidden))
        again = np.concatenate([self._logits(hidden[p : p + 1], 1, None) for p in positions])
        return float(np.max(relative_errors(logits[positions], again)))

    def _logits(self, rows: Rows, batch: int, function: str | None) -> Rows:
        found = self._program.predict({"hidden_states": _pad(rows, batch)[None]}, None, function)
        parts = [_rows(output(found, f"logits{i}"))[: len(rows)] for i in range(1, self._parts + 1)]
        return np.concatenate(parts, axis=1)

    def choices(self, hidden: Rows) -> NDArray[np.int64]:
        """(T, H) -> (T,) token ids, for a head that gives each part's best token and its logit."""
        found = [self._program.predict({"hidden_states": row[None, None]}) for row in hidden]
        best = [int(np.argmax(output(outputs, "argmax_val"))) for outputs in found]
        return np.array(
            [output(outputs, "argmax_idx")[k] + self._offsets[k] for outputs, k in zip(found, best, strict=True)]
        )

    def reference(self, hidden: Rows) -> Rows:
        """(T, H) -> logits (T, vocab) from the package's decoded weights, in float32."""
        parts = range(1, self._parts + 1)
        return np.concatenate([linear(hidden, self.weight(head_part(part))) for part in parts], axis=1)

    def weight(self, name: str) -> NDArray[Any]:
        return np.atleast_2d(decoded(self._program, name, None))  # a part may be a single row

    def palettised(self, name: str) -> bool:
        return is_palettised(self._program, name, None)


def probes(rows: int) -> NDArray[np.intp]:
    """Some of ``rows`` rows, the first and the last among them."""
    return np.unique(np.linspace(0, rows - 1, PROBES).astype(np.intp))


def head_part(number: int) -> str:
    """The name of a part of the head, counted from 1."""
    return f"lm_head.{number}.weight"


def decoded(program: Program, name: str, function: str | None) -> NDArray[Any]:
    """A weight of the package by its checkpoint name, in the checkpoint's shape."""
    stored = name.replace(".", "_")
    value = program.weight(f"{stored}{PALETTISED}" if is_palettised(program, name, function) else stored, function)
    return value.reshape([size for size in value.shape if size != 1] or [1])


def is_palettised(program: Program, name: str, function: str | None) -> bool:
    return f"{name.replace('.', '_')}{PALETTISED}" in program.weight_names(function)


def _pad(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """Zero rows behind ``rows`` up to ``count``."""
    return np.concatenate([rows, np.zeros((count - len(rows), *rows.shape[1:]), rows.dtype)])


def _rows(value: NDArray[Any]) -> Rows:
    return np.asarray(value[0], np.float32)
