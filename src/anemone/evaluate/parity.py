"""Does a bundle compute what its checkpoint computes? Executed part by part, all tokens through one part at a time.

Three streams of hidden states run side by side: the packages in the executor, the reference with the bundle's own
decoded weights, and the reference with the checkpoint's. The first two differ only if the graph is wrong; the last
two differ by what palettisation costs. Peak memory is one part.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anemone.architectures import resolve
from anemone.architectures.base import DecoderConfig
from anemone.architectures.tensors import EMBEDDING, FINAL_NORM, HEAD, layer_shapes
from anemone.checkpoint import Checkpoint
from anemone.errors import PackageError, RequestError
from anemone.evaluate.divergence import relative_errors
from anemone.evaluate.packaged import PackagedChunk, PackagedEmbeddings, PackagedHead, Stored, head_part, probes
from anemone.evaluate.report import MAX_STAGE_ERROR, Report, gates
from anemone.evaluate.weights import misplaced
from anemone.package.bundle import Bundle
from anemone.progress import Progress, Silent, Stage
from anemone.reference import Reference

Rows: TypeAlias = NDArray[np.float32]  # (tokens, channels)

LOGITS_BYTES = 64 << 20
"""Logits of one stream that are held at a time."""


def verify_bundle(
    bundle: Bundle,
    source: Checkpoint,
    ids: Sequence[int],
    *,
    max_kl: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run ``ids`` through the bundle and both references.

    Windows of at most the context are independent. ``max_kl`` limits the mean KL (nats) from the checkpoint.
    Raises PackageError when the bundle does not belong to the source.
    """
    config = resolve(source.config, source.tensors).config
    if max_kl is not None and bundle.argmax and not bundle.has_score:
        raise RequestError(
            "max-kl needs logits, but this head gives only its best tokens; convert it without --no-score."
        )
    if config.vocab != bundle.vocab:
        raise PackageError(f"{bundle.path} has {bundle.vocab} tokens, {source.name} {config.vocab}: another checkpoint")
    # Executing a chunk costs about as much as the two references for its layers.
    steps = 2 + 2 * config.layers
    # NaN and infinities are counted; numpy need not warn of them too.
    with (progress or Silent()).stage("verify", steps, "steps") as stage, np.errstate(all="ignore"):
        run = _Verification(bundle, source, config, np.asarray(ids, np.int32), stage)
        run.embeddings()
        for index in range(len(bundle.chunks)):
            run.chunk(index)
        run.head()
    run.report.gates = gates(run.report, max_kl)
    return run.report


class _Verification:
    """The streams between parts: ``packaged``, ``own`` (the bundle's weights) and ``source`` (the checkpoint's)."""

    def __init__(
        self, bundle: Bundle, source: Checkpoint, config: DecoderConfig, ids: NDArray[np.int32], stage: Stage
    ) -> None:
        self.bundle, self.config, self.ids, self.stage = bundle, config, ids, stage
        self.report = Report()
        self.done = 0  # layers
        self.read = source.read
        self.checkpoint = Reference(config, source.read)
        self.packaged: Rows
        self.own: Rows
        self.source: Rows
        whole = bundle.context // bundle.batch * bundle.batch
        self.windows = [slice(a, min(a + whole, len(ids))) for a in range(0, len(ids), whole)]

    def embeddings(self) -> None:
        part = PackagedEmbeddings(self.bundle.embeddings, self.bundle.batch)
        self._check_weight(part, EMBEDDING, EMBEDDING, self.bundle.embeddings.name)
        self.packaged = part.run(self.ids)
        self.report.saw_one_row(part.probe(self.ids, self.packaged))
        self.own = Reference(self.config, part.weight).embed(self.ids)
        self.source = self.checkpoint.embed(self.ids)
        self._compare(self.bundle.embeddings.name, self.packaged, self.own)
        self.stage.advance(1)

    def chunk(self, index: int) -> None:
        path = self.bundle.chunks[index]
        last = index == len(self.bundle.chunks) - 1
        part = PackagedChunk(path, self.bundle.context, self.bundle.batch, last)
        if part.layers.start != self.done or (last and part.layers.stop != self.config.layers):
            raise PackageError(
                f"{path} holds layers {part.layers.start} to {part.layers.stop - 1}, where layers {self.done} to "
                f"{self.config.layers - 1} are left; its packages were mixed up: convert again"
            )
        self.done = part.layers.stop
        own = Reference(self.config, part.weight)
        runs = []
        for window in self.windows:
            runs.append(part.run(self.packaged[window]))
            self.stage.advance(len(part.layers) / len(self.windows))
            self.report.saw_one_row(runs[-1].one_row_error)
        for layer in part.layers:
            for name in layer_shapes(self.config):
                self._check_weight(part, full := f"model.layers.{layer}.{name}", full, f"{path.name}, layer {layer}")
            self.own = self._layer(own, layer, self.own)
            self.source = self._layer(self.checkpoint, layer, self.source)
            packaged = np.concatenate([run.layers[layer] for run in runs])
            self._compare(f"{path.name}, layer {layer}", packaged, self.own)
            self.stage.advance(1)
        self.packaged = np.concatenate([run.output for run in runs])
        if last:
            self._check_weight(part, FINAL_NORM, FINAL_NORM, path.name)
            self.own, self.source = own.final(self.own), self.checkpoint.final(self.source)
            self._compare(f"{path.name}, final norm", self.packaged, self.own)

    def head(self) -> None:
        part = PackagedHead(self.bundle)
        matrix, ends = EMBEDDING if self.config.tied else HEAD, np.cumsum((0, *self.bundle.head_sizes)).tolist()
        for number, rows in enumerate(map(slice, ends, ends[1:]), start=1):
            self._check_weight(part, head_part(number), matrix, self.bundle.lm_head.name, rows)
        whole = LOGITS_BYTES // (4 * self.config.vocab * self.bundle.batch) * self.bundle.batch
        for start in range(0, len(self.ids), max(whole, self.bundle.batch)):
            rows = slice(start, start + max(whole, self.bundle.batch))
            own, source = part.reference(self.own[rows]), self.checkpoint.logits(self.source[rows])
            if not part.has_logits:
                choices = part.choices(self.packaged[rows])
                self.report.graph.add_choices(own, choices)
                self.report.checkpoint.add_choices(source, choices)
                continue
            packaged = part.run(self.packaged[rows])
            if self.bundle.argmax:
                some = probes(len(packaged))
                self.report.choices.add_choices(packaged[some], part.choices(self.packaged[rows][some]))
            else:
                self.report.saw_one_row(part.probe(self.packaged[rows], packaged))
            self.report.nonfinite += packaged.size - int(np.isfinite(packaged).sum())
            self.report.graph.add(own, packaged)
            self.report.checkpoint.add(source, packaged)
        self.stage.advance(1)

    def _check_weight(self, part: Stored, name: str, source: str, place: str, rows: slice | None = None) -> None:
        stored, wanted = part.weight(name), self.read(source, rows)
        if stored.squeeze().shape != wanted.squeeze().shape:
            raise PackageError(
                f"{place} stores {name} as {list(stored.shape)}, the checkpoint has {list(wanted.shape)}: "
                "another checkpoint"
            )
        wrong = misplaced(stored, wanted, part.palettised(name))
        self.report.misplaced += wrong
        if wrong and not self.report.diverged:
            self.report.diverged = f"{place} ({wrong} values of {name} are not the checkpoint's)"

    def _layer(self, reference: Reference, layer: int, x: Rows) -> Rows:
        return np.concatenate([reference.layer(layer, x[window]) for window in self.windows])

    def _compare(self, stage: str, packaged: Rows, own: Rows) -> None:
        self.report.nonfinite += packaged.size - int(np.isfinite(packaged).sum())
        worst = float(np.max(relative_errors(own, packaged)))
        if not (worst <= MAX_STAGE_ERROR or self.report.diverged):
            self.report.diverged = f"{stage} (relative error {worst:.2g})"
