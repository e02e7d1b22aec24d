"""Compiling packages with Xcode's coremlcompiler, which exists on macOS only."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anemone.errors import PackageError
from anemone.package.place import hidden_sibling, move_into_place

SKIPPED = "skipped: compiling needs macOS with Xcode's coremlcompiler"

Runner = Callable[..., Any]
"""Called like ``subprocess.run``; returns something with returncode and stderr."""


@dataclass(frozen=True)
class Compiled:
    """``path`` is the .mlmodelc, or None with the reason in ``skipped``."""

    path: Path | None
    skipped: str = ""


def compile_package(
    package: str | Path, folder: str | Path, run: Runner = subprocess.run, platform: str = sys.platform
) -> Compiled:
    """Compile ``package`` into ``folder``/<its name>.mlmodelc, replacing an older one there.

    Elsewhere than on macOS, or without Xcode, nothing happens and the result says so. PackageError with the compiler's
    own words when it fails.
    """
    package, folder = Path(package), Path(folder)
    target = folder / f"{package.stem}.mlmodelc"
    building = hidden_sibling(target, "partial")
    if platform != "darwin" or not _found(run, ["xcrun", "--find", "coremlcompiler"]):
        return Compiled(None, SKIPPED)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        result = run(
            ["xcrun", "coremlcompiler", "compile", str(package), str(building)], capture_output=True, text=True
        )
        compiled = building / target.name
        if result.returncode or not compiled.is_dir():
            raise PackageError(f"coremlcompiler could not compile {package}: {_last_words(result)}")
        move_into_place(compiled, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return Compiled(target)


def _found(run: Runner, command: Sequence[str]) -> bool:
    try:
        return not run(command, capture_output=True, text=True).returncode
    except FileNotFoundError:
        return False


def _last_words(result: Any) -> str:
    return (result.stderr or result.stdout or "").strip() or f"exit code {result.returncode}, no message"
