"""Inputs and outputs of programs as files: .npz, .npy, .json and images."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from anemone.errors import RequestError

if TYPE_CHECKING:
    from anemone.execute import Signature

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}


def read_inputs(files: Sequence[str], signature: "Signature") -> dict[str, Any]:
    """From FILE or NAME=FILE; an .npz or .json names its inputs itself. Raises RequestError."""
    found: dict[str, Any] = {}
    for item in files:
        name, _, file = item.rpartition("=") if not Path(item).exists() else ("", "", item)
        for key, value in _read(Path(file), name, signature).items():
            if key in found:
                raise RequestError(f"the input {key!r} is given twice.")
            found[key] = value
    return found


def _read(path: Path, name: str, signature: "Signature") -> dict[str, Any]:
    suffix = path.suffix.lower()
    try:
        if suffix == ".npz":
            content = read_arrays(path)
            return {name: _single(content, path)} if name else content
        if suffix == ".json":
            content = json.loads(path.read_text("utf-8"))
            if name or not isinstance(content, dict):
                return {_name(name, path, signature): _typed(content, _name(name, path, signature), signature)}
            return {key: _typed(value, key, signature) for key, value in content.items()}
        if suffix == ".npy":
            return {_name(name, path, signature): np.load(path, allow_pickle=False)}
        if suffix in IMAGES:
            key = _name(name, path, signature)
            return {key: _image(path, signature.inputs[key].layout if key in signature.inputs else "")}
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read: {error}.") from None
    raise RequestError(f"{path} is of no known kind; use .npz, .npy, .json or an image.")


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an .npz by name. Raises RequestError."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise RequestError(f"{path} cannot be read: {error}.") from None


def _name(name: str, path: Path, signature: "Signature") -> str:
    if name:
        return name
    if len(signature.inputs) != 1:
        raise RequestError(f"{path} is one of {len(signature.inputs)} inputs; say which: NAME={path}")
    return next(iter(signature.inputs))


def _single(content: Mapping[str, Any], path: Path) -> Any:
    if len(content) != 1:
        raise RequestError(f"{path} holds {len(content)} arrays; give it without a name.")
    return next(iter(content.values()))


def _typed(value: Any, name: str, signature: "Signature") -> Any:
    """JSON's numbers as what the input takes: whole numbers may stand for any number."""
    array = np.asarray(value)
    spec = signature.inputs.get(name)
    if spec is not None and spec.dtype.startswith("fp") and array.dtype.kind in "iu":
        return array.astype(np.float32)
    return array


def _image(path: Path, layout: str) -> Any:
    """In PIL's mode of the layout."""
    try:
        from PIL import Image
    except ImportError:
        raise RequestError(f"{path} is an image, which needs Pillow: pip install 'anemone-llm[images]'") from None
    with Image.open(path) as image:
        return image.convert({"GRAYSCALE": "L", "GRAYSCALE_FLOAT16": "F"}.get(layout, "RGB"))


def parse_shapes(items: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """NAME=1,64 -> {NAME: (1, 64)}. Raises RequestError."""
    shapes = {}
    for item in items:
        name, _, text = item.partition("=")
        sizes = text.split(",")
        if not name or not all(size.strip().isdecimal() for size in sizes):
            raise RequestError(f"{item!r} is no shape; write NAME=1,64.")
        shapes[name] = tuple(int(size) for size in sizes)
    return shapes


def write_outputs(path: Path, outputs: Mapping[str, Any]) -> None:
    """By suffix: .npz and .json hold all, .npy one. The file appears when it is complete. Raises RequestError."""
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".npy", ".json"):
        raise RequestError(f"{path} is of no known kind; use .npz, .npy or .json.")
    if suffix == ".npy" and len(outputs) != 1:
        raise RequestError(f"{path} can hold one output, but there are {len(outputs)}: use .npz or .json.")
    arrays = {key: np.asarray(value) for key, value in outputs.items()}
    if suffix != ".json" and (odd := [key for key, array in arrays.items() if array.dtype.kind not in "fiub"]):
        raise RequestError(f"{path} holds numbers, but {odd[0]!r} is none: use .json.")
    building = path.with_name(f".{path.name}.part")
    try:
        with building.open("wb") as file:
            if suffix == ".npz":
                np.savez(file, **arrays)  # type: ignore[arg-type]
            elif suffix == ".npy":
                np.save(file, next(iter(arrays.values())))
            else:
                file.write(json.dumps({key: value.tolist() for key, value in arrays.items()}).encode())
        building.replace(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        building.unlink(missing_ok=True)


def statistics(array: Any) -> dict[str, Any]:
    """dtype, shape, and over the finite numbers least, greatest and mean; how many are not finite."""
    values = np.asarray(array)
    found: dict[str, Any] = {"dtype": str(values.dtype), "shape": list(values.shape)}
    if values.dtype.kind not in "fiu" or not values.size:
        return found
    finite = values[np.isfinite(values)].astype(np.float64)
    for key, function in (("min", np.min), ("max", np.max), ("mean", np.mean)):
        found[key] = float(function(finite)) if finite.size else None
    return {**found, "nonfinite": int(values.size - finite.size)}
