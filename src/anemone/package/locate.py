"""The files of a .mlpackage, never anything outside it."""

import json
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from anemone.errors import PackageError
from anemone.package.proto import MODEL

_SHOWN = 200  # characters of a path in a message


def model_file(path: str | Path) -> Path:
    """The model.mlmodel of a package. PackageError when ``path`` is not one."""
    path = Path(path)
    manifest = path / "Manifest.json"
    if not manifest.is_file():
        why = "it has no Manifest.json" if path.is_dir() else "it is no folder" if path.exists() else "no such file"
        raise PackageError(f"{path} is not a .mlpackage: {why}.")
    try:
        content = json.loads(inside(path, manifest).read_text("utf-8"))
        name = str(content["itemInfoEntries"][content["rootModelIdentifier"]]["path"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackageError(f"{manifest} is damaged and names no model; the package has to be made again.") from error
    return inside(path, path / "Data" / name)


def inside(package: Path, path: Path) -> Path:
    """``path`` as it is, if following it stays in the package. PackageError."""
    shown = str(path)[:_SHOWN]
    try:
        path.exists()  # names that are too long fail here
        if path.resolve().is_relative_to(package.resolve()):
            return path
    except (OSError, ValueError, RuntimeError) as error:  # names too long, zero bytes in them, links in a circle
        raise PackageError(f"{package} names a file that cannot be: {shown!r}.") from error
    raise PackageError(f"{package} names a file outside itself, {shown!r}; copy it with the files that links lead to.")


def load_model(path: str | Path) -> Any:
    """The Model message of a package. PackageError when it is damaged or holds anything but an ML program."""
    file = model_file(path)
    if not file.is_file():
        raise PackageError(f"{path} lacks {file.name[:_SHOWN]}; the package has to be copied or made again.")
    try:
        model = MODEL.Model.FromString(file.read_bytes())
    except OSError as error:
        raise PackageError(f"{file} cannot be read: {error.strerror}.") from error
    except DecodeError as error:
        raise PackageError(f"{file} is damaged: it cannot be parsed as a Core ML model.") from error
    kind = model.WhichOneof("Type")
    if kind != "mlProgram":
        raise PackageError(
            f"{path} holds {f'a {kind}' if kind else 'no model'}, not an ML program; only those can be read."
        )
    return model
