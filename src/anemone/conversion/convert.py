"""From a checkpoint to a bundle: plan, write each part, complete the bundle, verify.

A part is finished when its package exists and carries the key that its recipe and source give; finished parts are kept,
so an interrupted conversion goes on where it stopped.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anemone.checkpoint import Checkpoint, open_checkpoint
from anemone.compress.fp16 import Fp16Loss, combine
from anemone.conversion.completion import Completion, check_text_files
from anemone.conversion.parts import Build, build_part, finished, part_key
from anemone.conversion.plan import Part, Plan, make_plan
from anemone.conversion.steps import COMPILE, COMPLETE, STEPS, TEST, Steps
from anemone.errors import GateFailed, PackageError, RecipeError
from anemone.evaluate.report import Report
from anemone.evaluate.verify import verify
from anemone.memory import peak_rss_mb
from anemone.package import bundle_writer
from anemone.package.bundle import file_hashes
from anemone.package.compile import compile_package
from anemone.package.place import sole_writer, tidied
from anemone.progress import Progress, Silent
from anemone.recipe import Recipe


@dataclass(frozen=True)
class Conversion:
    """A finished conversion. ``report`` is None when verification was not wanted."""

    bundle: Path
    plan: Plan
    parts: tuple[Build, ...]
    seconds: float
    peak_rss_mb: float
    report: Report | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "bundle": str(self.bundle),
            "parts": [
                {"name": build.path.name, "bytes": build.bytes, "weights": build.summary, "reused": build.reused}
                for build in self.parts
            ],
            "total_bytes": sum(build.bytes for build in self.parts),
            "bits_per_weight": round(self.plan.bits_per_weight, 4),
            "resident_bytes": self.plan.resident_bytes,
            "seconds": round(self.seconds, 3),
            "peak_rss_mb": round(self.peak_rss_mb, 1),
            "verify": self.report.as_dict() if self.report else None,
            "fp16_loss": vars(self.loss),
            "notes": list(self.plan.notes),
        }

    @property
    def loss(self) -> Fp16Loss:
        """What narrowing to fp16 lost in the parts that were written now."""
        return combine(build.loss for build in self.parts)


def convert(
    source: str | Path | Checkpoint,
    out: str | Path,
    recipe: Recipe | None = None,
    *,
    verification: bool = True,
    steps: Steps | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Conversion:
    """Write the bundle of ``source`` to the folder ``out`` and verify it.

    Raises GateFailed when the finished bundle does not compute what the checkpoint computes; its manifest then says so,
    and the error carries the Conversion as ``result``.
    """
    begun, steps, progress = time.monotonic(), steps or Steps(), progress or Silent()
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    plan = make_plan(checkpoint, recipe or Recipe())
    if steps.only == TEST and not verification:
        raise RecipeError(f"only {TEST} is the verification, which is not wanted: nothing is left to do")
    check_text_files(checkpoint, needed=verification and steps.wanted(TEST))
    out = Path(out)
    bundle_writer.check_folder(out)
    for note in plan.notes:
        progress.note(note)
    out.mkdir(parents=True, exist_ok=True)
    with sole_writer(out), tidied(out):
        builds, report = _write(plan, checkpoint, out, steps, verification, workers, progress)
    result = Conversion(out, plan, tuple(builds), time.monotonic() - begun, peak_rss_mb(), report)
    if report and not report.passed:
        kept = any(build.reused for build in builds)
        advice = "; parts of an earlier run were kept, --restart 1 makes them again" if kept else ""
        raise GateFailed(f"{out} was written but does not pass: {report.failure}{advice}", result)
    return result


def _write(
    plan: Plan, checkpoint: Checkpoint, out: Path, steps: Steps, verification: bool, workers: int, progress: Progress
) -> tuple[list[Build], Report | None]:
    """The wanted steps; the parts that they wrote or found finished, and the verification's report."""
    with ThreadPoolExecutor(1) as hashing:  # files are read again for their hashes while the next part is written
        source_hash = hashing.submit(checkpoint.source_hash)
        builds, digests = [], {}
        for part in plan.parts:
            build = _make(plan, part, checkpoint, source_hash, out, steps, workers, progress)
            if build is not None:
                builds.append(build)
                digests[build.path.name] = hashing.submit(file_hashes, build.path)
    if steps.wanted(COMPILE):
        _compile(builds, out, progress)
    bundle = Completion(out, plan, builds, checkpoint, {name: digest.result() for name, digest in digests.items()})
    report = None
    if steps.wanted(COMPLETE):
        bundle.write(None)
    if verification and steps.wanted(TEST):
        report = verify(out, checkpoint, progress=progress)
        bundle.write(report)
    return builds, report


def _make(
    plan: Plan,
    part: Part,
    source: Checkpoint,
    source_hash: Future[str],
    out: Path,
    steps: Steps,
    workers: int,
    progress: Progress,
) -> Build | None:
    """Write the part, or keep the finished one; None for a part that is not there when only another one is wanted."""
    path, own = out / f"{part.name}.mlpackage", STEPS[part.kind]

    def key() -> str:
        return part_key(plan, part, source_hash.result())

    current = finished(path, part, key)
    if current and not steps.again(*own):
        progress.note(f"{part.name}: finished before, kept")
        return Build.kept(part, path)
    if not steps.wanted(*own):
        if steps.only is not None and steps.only < COMPILE:
            return None
        raise PackageError(
            f"{path} is not there for this recipe and source; run step {own[0]} before step {steps.only}"
        )
    if path.exists() and not current:
        bundle_writer.forget(out)  # the bundle that the old part belongs to ends here
    return build_part(plan, part, source, key, path, workers, progress)


def _compile(builds: list[Build], out: Path, progress: Progress) -> None:
    for build in builds:
        compiled = compile_package(build.path, out)
        if compiled.skipped:
            progress.note(f"compile: {compiled.skipped}")
            return
