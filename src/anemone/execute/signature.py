"""What a function takes and gives: names, dtypes and the shapes that it accepts."""

from collections.abc import Mapping
from dataclasses import dataclass

from anemone.execute.dtypes import Shape


@dataclass(frozen=True)
class TensorSpec:
    """One input, output or state.

    dtype: fp16, fp32, int32, ... (MIL's names). shape: the default shape. ``shapes`` lists every accepted shape when
    they are enumerated; ``ranges`` holds (least, most) per axis when axes are free, most being -1 for no limit.
    ``default`` fills an input that may be left out; None means that it must be given. ``layout``: RGB, BGR, GRAYSCALE
    or GRAYSCALE_FLOAT16 of an image (1, channels, height, width), else empty.
    """

    name: str
    dtype: str
    shape: Shape
    shapes: tuple[Shape, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    default: float | None = None
    layout: str = ""

    def accepts(self, shape: Shape) -> bool:
        """Whether a tensor of this shape may be given."""
        if self.shapes:
            return shape in self.shapes
        if self.ranges:
            return len(shape) == len(self.ranges) and all(
                low <= size and (high < 0 or size <= high) for size, (low, high) in zip(shape, self.ranges, strict=True)
            )
        return shape == self.shape

    def accepted(self) -> str:
        """The accepted shapes in words, for messages."""
        if self.shapes:
            return " or ".join(str(list(shape)) for shape in self.shapes)
        if self.ranges:
            axes = [str(a) if a == b else f"{a}..{'' if b < 0 else b}" for a, b in self.ranges]
            return f"[{', '.join(axes)}]"
        return str(list(self.shape))


@dataclass(frozen=True)
class Signature:
    """A function's inputs, outputs and states by name, in the order of the package."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    states: Mapping[str, TensorSpec]
