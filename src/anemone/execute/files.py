"""Finding the files of a .mlpackage without leaving it."""

import json
from pathlib import Path

from anemone.errors import ExecuteError


def model_file(package: Path) -> Path:
    """The model file that the manifest names as the root. Raises ExecuteError."""
    manifest = package / "Manifest.json"
    if not package.is_dir() or not manifest.is_file():
        raise ExecuteError(f"{package} is no .mlpackage: it has no Manifest.json")
    try:
        content = json.loads(manifest.read_text("utf-8"))
        item = content["itemInfoEntries"][content["rootModelIdentifier"]]["path"]
    except (ValueError, KeyError, TypeError) as error:
        raise ExecuteError(f"{manifest} is damaged: {error}") from error
    return inside(package, package / "Data" / str(item))


def weight_file(package: Path, model: Path, name: str) -> Path:
    """The file behind a name such as ``@model_path/weights/weight.bin``. Raises ExecuteError."""
    prefix = "@model_path/"
    if not name.startswith(prefix):
        raise ExecuteError(f"weights in {name!r} cannot be found: only names that begin with {prefix} are known")
    return inside(package, model.parent / name.removeprefix(prefix))


def inside(package: Path, path: Path) -> Path:
    """``path`` if it is a file of the package. Raises ExecuteError."""
    resolved = path.resolve()
    if not resolved.is_relative_to(package.resolve()):
        raise ExecuteError(f"{package} names a file outside itself: {path}")
    if not resolved.is_file():
        raise ExecuteError(f"{package} names a file that does not exist: {path}")
    return resolved
