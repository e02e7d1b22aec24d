"""What turns finished packages into a bundle: tokenizer files, config.json, meta.yaml and the manifest."""

import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anemone.checkpoint import Checkpoint
from anemone.checkpoint.tokenizer import check_tokenizer, find_tokenizer_files, stop_tokens
from anemone.conversion.parts import KEY, Build
from anemone.conversion.plan import Part, Plan
from anemone.errors import PackageError
from anemone.evaluate.report import Report
from anemone.graph.functions import head_sizes
from anemone.package import bundle_writer
from anemone.package.bundle import FORMAT, META
from anemone.package.meta import meta_values
from anemone.package.read import read_package
from anemone.version import __version__

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Completion:
    """``digests`` holds, by package, the SHA-256 of each of its files."""

    out: Path
    plan: Plan
    builds: Sequence[Build]
    source: Checkpoint
    digests: Mapping[str, Mapping[str, str]]

    def write(self, report: Report | None) -> None:
        """Write everything beside the packages, with the verification's ``report`` once there is one."""
        self._remove_stale()
        tokenizer = self.source.tokenizer_files()
        for name in find_tokenizer_files(self.out).keys() - tokenizer.keys():  # such as another model's chat template
            (self.out / name).unlink()
        stops = stop_tokens(self.source.config, self.source.generation_config, tokenizer)
        bundle_writer.write_tokenizer(self.out, tokenizer)
        bos = self.source.config.get("bos_token_id")
        bundle_writer.write_config(self.out, self.plan.config.model_type, stops, bos)
        self._write_meta()
        self._write_manifest(stops, report, tokenizer)

    def _write_meta(self) -> None:
        plan = self.plan
        named = {"embeddings": plan.parts[0], "lm_head": plan.parts[1], "ffn": plan.chunks[0]}
        files = {key: self._file_name(part) for key, part in named.items()}
        sizes = head_sizes(plan.config.vocab, plan.head_split)
        count = len(plan.chunks)
        meta = meta_values(self.source.name, plan.recipe, plan.config, plan.prefix, sizes, files, count)
        bundle_writer.write_meta(self.out, meta)

    def _write_manifest(self, stops: Sequence[int], report: Report | None, tokenizer: Collection[str]) -> None:
        plan = self.plan
        manifest = {
            "format": FORMAT,
            "anemone": __version__,
            "recipe": plan.recipe.as_dict(),
            "source": {"name": self.source.name, "sha256": self.source.source_hash()},
            "model_type": plan.config.model_type,
            "sizes": {build.path.name: build.bytes for build in self.builds},
            "bits_per_weight": plan.bits_per_weight,
            "kv_bytes": plan.kv_bytes,
            "stop_tokens": list(stops),
            "validated": bool(report and report.passed),
            "verify": report.as_dict() if report else None,
        }
        compiled = [build.path.with_suffix(".mlmodelc") for build in self.builds]
        others = (*tokenizer, "config.json", META, *(path.name for path in compiled if path.is_dir()))
        bundle_writer.write_manifest(self.out, manifest, self.digests, others)

    def _file_name(self, part: Part) -> str:
        """The compiled package's name where there is one: apps load only those."""
        compiled = f"{part.name}.mlmodelc"
        return compiled if (self.out / compiled).is_dir() else f"{part.name}.mlpackage"

    def _remove_stale(self) -> None:
        """Remove packages that an earlier conversion with another recipe left here; others' packages stay."""
        current = {build.path.name for build in self.builds}
        for package in sorted(self.out.glob("*.mlpackage")):
            if package.name in current or not _ours(package):
                continue
            log.info("removing %s, which this recipe does not use", package)
            shutil.rmtree(package)
            shutil.rmtree(package.with_suffix(".mlmodelc"), ignore_errors=True)


def check_text_files(source: Checkpoint, needed: bool) -> None:
    """Raise CheckpointError for whatever would stop ``Completion`` or, if ``needed``, the verification after it."""
    tokenizer = source.tokenizer_files()
    stop_tokens(source.config, source.generation_config, tokenizer)
    check_tokenizer(tokenizer, needed)


def _ours(package: Path) -> bool:
    try:
        return KEY in read_package(package).user_defined
    except PackageError:
        return False
