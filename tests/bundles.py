"""Conversions that tests share, and a client that drives packages as ANEMLL's apps do."""

import io
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import yaml
from numpy.typing import NDArray
from tiny import make_tiny

from anemone.conversion.convert import convert
from anemone.execute import Program, State
from anemone.recipe import Recipe

FP16: dict[str, Any] = {"lut_embeddings": None, "lut_ffn": None, "lut_lmhead": None}
STATE = "model_model_kv_cache_0"


class Workshop:
    """Builds each checkpoint and each bundle once; equal wishes share a folder that nobody may change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: dict[str, Path] = {}

    def checkpoint(self, model_type: str, **options: Any) -> Path:
        """A tiny random checkpoint (tests/tiny.py)."""
        key = f"{model_type} {sorted(options.items())}"
        if key not in self._made:
            self._made[key] = make_tiny(self._next(), model_type, **options)
        return self._made[key]

    def bundle(self, source: Path, **recipe: Any) -> Path:
        """The bundle of a checkpoint: fp16, context 64 and batch 8 unless told otherwise; not verified."""
        wanted = {**FP16, "context": 64, "batch": 8, **recipe}
        key = f"{source} {sorted(wanted.items(), key=str)}"
        if key not in self._made:
            out = self._next()
            convert(source, out, Recipe(**wanted), verification=False)
            self._made[key] = out
        return self._made[key]

    def _next(self) -> Path:
        return self.root / str(len(self._made))


@dataclass
class Client:
    """Token ids in, logits out, straight on the packages: what a bundle's contract lets any client do.

    Shares nothing with the product's runtime. ``hidden`` is what the causal mask holds at positions not to be seen.
    """

    folder: Path
    numerics: str = "float16"
    hidden: float = -np.inf
    positions: int = 0
    parameters: dict[str, Any] = field(init=False)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        meta = yaml.safe_load((self.folder / "meta.yaml").read_text())
        self.parameters = meta["model_info"]["parameters"]
        self.context: int = self.parameters["context_length"]
        self.batch: int = self.parameters["batch_size"]
        self.embeddings = self._open(self.parameters["embeddings"])
        first, count = self.parameters["ffn"], self.parameters["num_chunks"]
        names = [first.replace("_chunk_01of", f"_chunk_{i + 1:02d}of") for i in range(count)]
        self.chunks = [self._open(name) for name in names]
        self.head = self._open(self.parameters["lm_head"])
        self.restart()

    def _open(self, name: str) -> Program:
        return Program(self.folder / name.replace(".mlmodelc", ".mlpackage"), numerics=self.numerics)

    def restart(self) -> None:
        self.state = self.chunks[0].new_state()

    def hidden_states(self, ids: Sequence[int], position: int, last: str) -> NDArray[Any]:
        """Rows through all chunks, the last of which runs function ``last``: (1, S, H)."""
        rows = np.arange(position, position + len(ids), dtype=np.int32)
        mask = np.where(np.arange(self.context) <= rows[:, None], 0.0, self.hidden).astype(np.float16)
        where = {"position_ids": rows, "causal_mask": mask[None, None], "current_pos": rows[:1]}
        x = self.embeddings.predict({"input_ids": np.array([ids], np.int32)})["hidden_states"]
        functions = ["infer" if last == "infer" else "prefill"] * (len(self.chunks) - 1) + [last]
        for chunk, function in zip(self.chunks, functions, strict=True):
            x = chunk.predict({"hidden_states": x, **where}, self.state, function)["output_hidden_states"]
        return x

    def logits(self, hidden: NDArray[Any], function: str = "main") -> NDArray[np.float32]:
        """(1, S, H) -> (S, V), the head's parts in order."""
        parts = self.head.predict({"hidden_states": hidden}, function=function)
        names = [f"logits{i + 1}" for i in range(self.parameters["split_lm_head"])]
        return np.concatenate([parts[name][0] for name in names], axis=-1).astype(np.float32)

    def best(self, token: int, position: int) -> int:
        """The greedy token after ``token``, from logits or from the candidates of an argmax head."""
        hidden = self.hidden_states([token], position, "infer")
        if not self.parameters.get("argmax_in_model"):
            return int(np.argmax(self.logits(hidden)[0]))
        found = self.head.predict({"hidden_states": hidden})
        part = int(np.argmax(found["argmax_val"]))
        return int(found["argmax_idx"][part]) + sum(self.parameters["lm_head_chunk_sizes"][:part])

    def decode(self, ids: Sequence[int], position: int = 0) -> NDArray[np.float32]:
        """One by one through ``infer``: logits (T, V)."""
        rows = [self.logits(self.hidden_states([token], position + i, "infer"))[0] for i, token in enumerate(ids)]
        return np.stack(rows)

    def score(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Batches through ``score``, the last one padded: logits (T, V)."""
        rows = []
        for start in range(0, len(ids), self.batch):
            part = list(ids[start : start + self.batch])
            padded = part + [0] * (self.batch - len(part))
            rows.append(self.logits(self.hidden_states(padded, start, "score"), "score")[: len(part)])
        return np.concatenate(rows)

    def prefill(self, ids: Sequence[int]) -> None:
        """Whole batches through ``prefill``, the rest token by token, as ANEMLL's clients do."""
        whole = len(ids) // self.batch * self.batch
        for start in range(0, whole, self.batch):
            self.hidden_states(ids[start : start + self.batch], start, "prefill")
        for i in range(whole, len(ids)):
            self.hidden_states([ids[i]], i, "infer")

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Prefill, run the last prompt token once more as these clients do, then go on greedily."""
        self.restart()
        self.prefill(prompt)
        ids = list(prompt)
        for _ in range(count):
            ids.append(self.best(ids[-1], len(ids) - 1))
        return ids[len(prompt) :]


def cosines(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """Row by row."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def mean_kl(truth: NDArray[Any], other: NDArray[Any]) -> float:
    """Mean KL(truth || other) in nats over rows of logits."""
    from scipy.special import log_softmax

    p, q = log_softmax(truth.astype(np.float64), axis=-1), log_softmax(other.astype(np.float64), axis=-1)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a tree by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def package_files(folder: Path) -> dict[str, bytes]:
    """The files of all packages of a bundle."""
    return {name: content for name, content in files(folder).items() if ".mlpackage" in name}


def weight_file(package: Path) -> Path:
    return package / "Data/com.apple.CoreML/weights/weight.bin"


def command(*arguments: Any) -> "subprocess.CompletedProcess[str]":
    """Run ``anemone`` as a user would, but in this process, which spares the start-up."""
    from anemone.cli.main import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    line = ["anemone", *map(str, arguments)]
    with mock.patch.object(sys, "argv", line), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:
            traceback.print_exc()
            code = 1
    return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())


def some_ids(count: int, vocab: int = 320, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(4, vocab, count)]
