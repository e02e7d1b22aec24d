"""Language models for the Apple Neural Engine: convert, verify and run Core ML packages on any machine.

    import anemone
    anemone.convert("Qwen/Qwen3-0.6B", "out", anemone.Recipe(context=1024))
    anemone.load("out").generate("Why is the sky blue?", chat=True).text

Names are imported when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anemone.version import __version__ as __version__

if TYPE_CHECKING:
    from anemone.conversion.convert import convert as convert
    from anemone.conversion.plan import make_plan as plan
    from anemone.evaluate.verify import verify as verify
    from anemone.package.bundle import Bundle as Bundle
    from anemone.recipe import Recipe as Recipe
    from anemone.runtime.generate import load as load

__all__ = ["Bundle", "Recipe", "convert", "load", "plan", "verify"]

_HOMES = {
    "Bundle": ("anemone.package.bundle", "Bundle"),
    "Recipe": ("anemone.recipe", "Recipe"),
    "convert": ("anemone.conversion.convert", "convert"),
    "load": ("anemone.runtime.generate", "load"),
    "plan": ("anemone.conversion.plan", "make_plan"),
    "verify": ("anemone.evaluate.verify", "verify"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'anemone' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
