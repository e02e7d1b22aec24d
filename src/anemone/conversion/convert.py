"""From a checkpoint to a bundle: plan, write each part, complete the bundle, verify.

A part is finished when its package exists and carries the key that its recipe and source give; finished parts are kept,
so an interrupted conversion goes on where it stopped.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anemone.checkpoint import Checkpoint, open_checkpoint
from anemone.checkpoint.tokenizer import stop_tokens
from anemone.compress.fp16 import Fp16Loss, combine
from anemone.conversion.parts import Build, build_part, finished, part_key
from anemone.conversion.plan import Part, Plan, make_plan
from anemone.conversion.steps import COMPILE, COMPLETE, STEPS, TEST, Steps
from anemone.errors import GateFailed, PackageError
from anemone.evaluate.report import Report
from anemone.evaluate.verify import verify
from anemone.graph.functions import head_sizes
from anemone.memory import peak_rss_mb
from anemone.package import bundle_writer
from anemone.package.compile import compile_package
from anemone.package.meta import meta_values
from anemone.progress import Progress, Silent
from anemone.recipe import Recipe
from anemone.version import __version__


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

    Raises GateFailed when the finished bundle does not compute what the checkpoint computes; its manifest then says so.
    """
    begun, steps, progress = time.monotonic(), steps or Steps(), progress or Silent()
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    plan = make_plan(checkpoint, recipe or Recipe())
    out = Path(out)
    bundle_writer.check_folder(out)
    for note in plan.notes:
        progress.note(note)
    out.mkdir(parents=True, exist_ok=True)
    builds = [_make(plan, part, checkpoint, out, steps, workers, progress) for part in plan.parts]
    if steps.wanted(COMPILE):
        _compile(builds, out, progress)
    report = None
    if steps.wanted(COMPLETE):
        _complete(plan, builds, checkpoint, out, None)
    if verification and steps.wanted(TEST):
        report = verify(out, checkpoint, progress=progress)
        _complete(plan, builds, checkpoint, out, report)
    result = Conversion(out, plan, tuple(builds), time.monotonic() - begun, peak_rss_mb(), report)
    if report and not report.passed:
        raise GateFailed(f"{out} was written but does not pass: {report.failure}")
    return result


def _make(
    plan: Plan,
    part: Part,
    source: Checkpoint,
    out: Path,
    steps: Steps,
    workers: int,
    progress: Progress,
) -> Build:
    """Write the part, or keep the finished one."""
    path, key, own = out / f"{part.name}.mlpackage", part_key(plan, part, source.source_hash()), STEPS[part.kind]
    if finished(path, key) and not steps.again(*own):
        progress.note(f"{part.name}: finished before, kept")
        return Build.kept(part, path)
    if not steps.wanted(*own):
        raise PackageError(
            f"{path} is not there for this recipe and source; run step {own[0]} before step {steps.only}"
        )
    return build_part(plan, part, source, key, path, workers, progress)


def _compile(builds: list[Build], out: Path, progress: Progress) -> None:
    for build in builds:
        compiled = compile_package(build.path, out)
        if compiled.skipped:
            progress.note(f"compile: {compiled.skipped}")
            return


def _complete(plan: Plan, builds: list[Build], source: Checkpoint, out: Path, report: Report | None) -> None:
    """Tokenizer files, config.json, meta.yaml and the manifest."""
    tokenizer = source.tokenizer_files()
    stops = stop_tokens(source.config, source.generation_config, tokenizer)
    bundle_writer.write_tokenizer(out, tokenizer)
    bundle_writer.write_config(out, plan.config.model_type, stops, source.config.get("bos_token_id"))
    sizes = head_sizes(plan.config.vocab, plan.head_split)
    names = {"embeddings": plan.parts[0], "lm_head": plan.parts[1], "ffn": plan.chunks[0]}
    files = {key: _file_name(out, part) for key, part in names.items()}
    meta = meta_values(source.name, plan.recipe, plan.config, plan.prefix, sizes, files, len(plan.chunks))
    bundle_writer.write_meta(out, meta)
    manifest = {
        "format": 1,
        "anemone": __version__,
        "recipe": plan.recipe.as_dict(),
        "source": {"name": source.name, "sha256": source.source_hash()},
        "model_type": plan.config.model_type,
        "sizes": {build.path.name: build.bytes for build in builds},
        "bits_per_weight": plan.bits_per_weight,
        "kv_bytes": plan.kv_bytes,
        "stop_tokens": list(stops),
        "validated": bool(report and report.passed),
        "verify": report.as_dict() if report else None,
    }
    bundle_writer.write_manifest(out, manifest, {build.path.name: build.sha256 for build in builds})


def _file_name(out: Path, part: Part) -> str:
    """The compiled package's name where there is one: apps load only those."""
    return f"{part.name}.mlmodelc" if (out / f"{part.name}.mlmodelc").is_dir() else f"{part.name}.mlpackage"
