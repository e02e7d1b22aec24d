"""Images in and out, as coremltools' MLModel.predict takes and gives them: PIL images of a fixed mode per layout.

Pixels enter a program as numbers 0..255 in (1, channels, height, width); scale and bias are operations of the program.
Arrays of pixels, uint8 (height, width, 3) or (height, width), are taken in place of PIL images.
"""

from typing import Any

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array, Shape
from anemone.execute.signature import TensorSpec

LAYOUTS = {10: "GRAYSCALE", 20: "RGB", 30: "BGR", 40: "GRAYSCALE_FLOAT16"}  # ImageFeatureType.ColorSpace
_MODES = {"GRAYSCALE": "L", "RGB": "RGB", "BGR": "RGB", "GRAYSCALE_FLOAT16": "F"}  # of PIL


def image_spec(name: str, dtype: str, image: Any) -> TensorSpec:
    """An image of a description (ImageFeatureType) as the tensor (1, channels, height, width) that it is."""
    layout = LAYOUTS.get(image.colorSpace)
    if layout is None:
        raise ExecuteError(f"image {name!r} has the colour space {image.colorSpace}, which is not supported")
    lead: Shape = (1, 3 if layout in ("RGB", "BGR") else 1)
    shape = (*lead, int(image.height), int(image.width))
    shapes = tuple((*lead, int(size.height), int(size.width)) for size in image.enumeratedSizes.sizes)
    ranges: tuple[tuple[int, int], ...] = ()
    if image.WhichOneof("SizeFlexibility") == "imageSizeRange":
        sides = (image.imageSizeRange.heightRange, image.imageSizeRange.widthRange)
        ranges = (*((n, n) for n in lead), *((int(s.lowerBound), int(s.upperBound)) for s in sides))
    return TensorSpec(name, dtype, shape, shapes, ranges, layout=layout)


def pixels(image: Any, spec: TensorSpec) -> Array:
    """The tensor of a given image, fp32 (1, channels, height, width). Raises ExecuteError."""
    mode = _MODES[spec.layout]
    given = getattr(image, "mode", None)
    if given is not None and given != mode:
        raise ExecuteError(
            f"input {spec.name!r} takes an image of PIL's mode {mode}, got mode {given}; convert it with "
            f"image.convert({mode!r})"
        )
    array = np.asarray(image)
    rank, kind = (3 if mode == "RGB" else 2), ("f" if mode == "F" else "u")
    if array.ndim != rank or array.dtype.kind != kind or (rank == 3 and array.shape[2] != 3):
        raise ExecuteError(
            f"input {spec.name!r} takes an image ({spec.layout}), a PIL image of mode {mode}, got "
            f"{type(image).__name__} of {array.dtype} {list(array.shape)}"
        )
    planes = array[None] if rank == 2 else np.moveaxis(array, 2, 0)
    planes = planes[::-1] if spec.layout == "BGR" else planes
    if not spec.accepts((1, *planes.shape)):
        raise ExecuteError(
            f"input {spec.name!r} takes images of (1, channels, height, width) {spec.accepted()}, got one of "
            f"{planes.shape[1]}x{planes.shape[2]} (height x width)"
        )
    return np.ascontiguousarray(planes[None], np.float32)


def image(array: Array, spec: TensorSpec) -> Any:
    """The PIL image of a result (1, channels, height, width): RGBA for colours, L, or F.

    Values are rounded to whole numbers and limited to 0..255, except in mode F. Raises ExecuteError without Pillow.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ExecuteError(
            f"output {spec.name!r} is an image, which needs Pillow: pip install 'anemone-llm[images]'"
        ) from error
    planes = array.reshape(array.shape[-3:])
    if spec.layout == "GRAYSCALE_FLOAT16":
        return Image.fromarray(np.ascontiguousarray(planes[0], np.float32))
    whole = np.clip(np.rint(np.nan_to_num(planes)), 0, 255).astype(np.uint8)
    if spec.layout == "GRAYSCALE":
        return Image.fromarray(whole[0])
    colours = whole[::-1] if spec.layout == "BGR" else whole
    return Image.fromarray(np.stack([*colours, np.full_like(colours[0], 255)], -1))
