"""What one architecture file states, and the checked reading of a config's keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anemone.errors import CheckpointError

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


class Keys:
    """A config with an architecture's defaults for the keys that it leaves out; a null stays null.

    Every reader raises CheckpointError naming the key and the value when the value is not of that kind.
    """

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]):
        self._config = config
        self._defaults = defaults

    def raw(self, name: str) -> Any:
        """The value as it stands, or the default."""
        return self._config.get(name, self._defaults.get(name))

    def states(self, name: str) -> bool:
        """Whether the config itself has the key."""
        return name in self._config

    def count(self, name: str) -> int:
        """A whole number > 0."""
        value = self.raw(name)
        if value is None:
            raise CheckpointError(f"The config has no {name}, which every model must state.")
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or value <= 0:
            raise CheckpointError(f"Config key {name} is {value!r}; it must be a whole number above 0.")
        return int(value)

    def number(self, name: str) -> float:
        """A finite number >= 0."""
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise CheckpointError(f"Config key {name} is {value!r}; it must be a number of at least 0.")
        return float(value)

    def flag(self, name: str) -> bool:
        """true or false; null and an unknown key read as false."""
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError(f"Config key {name} is {value!r}; it must be true or false.")
        return bool(value)


@dataclass(frozen=True)
class Architecture:
    """One model_type as data.

    ``defaults`` names the config keys that it reads besides SIZES, each with the value that transformers' own config
    class takes when the file leaves it out. None is derived: num_key_value_heads becomes one per head, head_dim
    hidden_size / num_attention_heads. ``must`` names keys whose other values change the mathematics in a way that is
    not built. The biases are constants, or the config key that switches them.
    """

    classes: tuple[str, ...]  # of transformers, as a checkpoint's `architectures` names them
    defaults: Mapping[str, Any]
    must: Mapping[str, Any] = field(default_factory=dict)
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    window: Callable[[Keys], int | None] | None = None  # a rule of windows.py; without one, full attention
