"""The numerics modes by name."""

from anemone.errors import ExecuteError
from anemone.execute.numerics import Numerics, round_half

MODES = ("float16", "float32", "ane")


def numerics_mode(name: str) -> Numerics:
    """The mode of this name; ``ane`` may be followed by a chip, as in ``ane:m1``. Raises ExecuteError."""
    kind, _, chip = name.partition(":")
    if kind not in MODES or (chip and kind != "ane"):
        raise ExecuteError(f"numerics {name!r} is not known; choose one of {', '.join(MODES)}, ane:CHIP")
    if kind == "float32":
        return Numerics(name, None)
    if kind == "float16":
        return Numerics(name, round_half)
    from anemone.execute.ane import ane_numerics  # heavy, and asked for rarely

    return ane_numerics(chip)
