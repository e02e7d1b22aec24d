"""Finding and reading the files of a package without leaving it."""

import json
from pathlib import Path

from anemone.errors import ExecuteError

_LARGEST = 2**31 - 1  # bytes of a message; also the limit for texts
_PREFIX = "@model_path/"
_SHOWN = 200  # characters of a name in a message


def model_file(package: Path) -> Path:
    """The model file that the manifest of a .mlpackage names as the root. Raises ExecuteError."""
    manifest = package / "Manifest.json"
    if not package.is_dir() or not manifest.is_file():
        what = "it has no Manifest.json" if package.is_dir() else "no such folder"
        raise ExecuteError(f"{package} is no .mlpackage: {what}")
    try:
        content = json.loads(read_text(inside(package, manifest)))
        item = content["itemInfoEntries"][content["rootModelIdentifier"]]["path"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ExecuteError(f"{manifest} is damaged and names no model: {str(error)[:_SHOWN]}") from error
    return inside(package, package / "Data" / str(item))


def weight_file(package: Path, folder: Path, name: str) -> Path:
    """The file behind a name such as ``@model_path/weights/weight.bin``, ``folder`` being the model's path.

    Raises ExecuteError.
    """
    if not name.startswith(_PREFIX):
        raise ExecuteError(f"weights in {name[:_SHOWN]!r} cannot be found: their names must begin with {_PREFIX}")
    return inside(package, folder / name.removeprefix(_PREFIX))


def inside(package: Path, path: Path) -> Path:
    """``path`` if it is a file of the package, links followed. Raises ExecuteError."""
    shown = repr(str(path)[: len(str(package)) + _SHOWN])
    try:
        resolved = path.resolve()
        within, found = resolved.is_relative_to(package.resolve()), resolved.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # names too long, zero bytes in them, links in a circle
        raise ExecuteError(f"{package} names a file that cannot be, {shown}") from error
    if not within:
        raise ExecuteError(f"{package} names a file outside itself, {shown}; copy it with the files that links lead to")
    if not found:
        raise ExecuteError(f"{package} names a file that does not exist, {shown}")
    return resolved


def read_bytes(path: Path) -> bytes:
    """The content of a model's file. Raises ExecuteError."""
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise ExecuteError(f"{path} has {size} bytes; a model file has no more than {_LARGEST}")
        return path.read_bytes()
    except OSError as error:
        raise ExecuteError(f"{path} cannot be read: {error.strerror}") from error


def read_text(path: Path) -> str:
    """The content of a text file. Raises ExecuteError."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ExecuteError(f"{path} is damaged: it is no UTF-8 text at byte {error.start}") from error
