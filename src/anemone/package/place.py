"""Putting a finished folder where it belongs: built beside its place under a hidden name, synced, renamed."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anemone.errors import PackageError


def hidden_sibling(path: Path, purpose: str) -> Path:
    """``.name.purpose`` in the same folder, thus on the same file system."""
    return path.with_name(f".{path.name}.{purpose}")


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep other conversions out of ``folder``; PackageError when one is at work there.

    The system's lock on the folder itself: it leaves no file, and ends with its holder however that ends.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # file systems without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PackageError(
                    f"another conversion is writing to {folder}; wait for it or give another folder"
                ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def tidied(folder: Path) -> Iterator[None]:
    """Nothing half done lies in ``folder`` in the block, and none stays when the block fails or is interrupted."""
    _remove_unfinished(folder)
    try:
        yield
    except BaseException:
        _remove_unfinished(folder)
        raise


def _remove_unfinished(folder: Path) -> None:
    """Remove what conversions that were killed left half done in ``folder``; only where no other writer is."""
    for pattern in (".*.mlpackage.partial", ".*.mlpackage.old", ".*.mlmodelc.partial", ".*.mlmodelc.old"):
        for left in folder.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write beside ``path``: it takes the place of ``path`` after the block, or goes away if that fails."""
    temporary = hidden_sibling(path, "part")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
