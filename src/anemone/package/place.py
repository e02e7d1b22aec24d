"""Putting a finished folder where it belongs: built beside its place under a hidden name, synced, renamed."""

import os
import shutil
from pathlib import Path


def hidden_sibling(path: Path, purpose: str) -> Path:
    """``.name.purpose`` in the same folder, thus on the same file system."""
    return path.with_name(f".{path.name}.{purpose}")


def move_into_place(building: Path, path: Path) -> None:
    """Sync the folder ``building`` and rename it to ``path``. What was there before stays there if the rename fails."""
    for folder, _, files in os.walk(building):
        for file in files:
            _sync(Path(folder) / file)
        _sync(Path(folder))
    old = hidden_sibling(path, "old")
    shutil.rmtree(old, ignore_errors=True)
    if not path.exists():
        building.rename(path)
        _sync(path.parent)
        return
    path.rename(old)
    try:
        building.rename(path)
    except BaseException:
        old.rename(path)
        raise
    _sync(path.parent)
    shutil.rmtree(old)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
