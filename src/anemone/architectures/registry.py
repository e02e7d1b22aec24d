"""From a model_type to its architecture: the module of this package that has that name."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from typing import Any

from anemone.architectures.spec import Architecture
from anemone.architectures.unsupported import MISSING
from anemone.errors import CheckpointError, UnsupportedModel

_PACKAGE = "anemone.architectures"


def supported() -> dict[str, Architecture]:
    """Every model_type that is built, in alphabetical order."""
    names = (module.name for module in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__))
    return {name: found for name in sorted(names) if (found := _load(name)) is not None}


def architecture_of(config: Mapping[str, Any], also: str = "") -> Architecture:
    """The architecture of a config, by its model_type alone.

    ``also`` is a further obstacle to name in the refusal. Raises UnsupportedModel, saying what is missing.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise CheckpointError(f"The config has no model_type (found {model_type!r}), so its architecture is unknown.")
    found = _load(model_type)
    nested = next((key for key in ("text_config", "vision_config", "audio_config") if config.get(key)), None)
    if found is not None and nested is None:
        return found
    why = MISSING.get(model_type)
    if why is None:
        why = f"it is multimodal ({nested})" if nested else "nothing is known about it"
    raise UnsupportedModel(
        f'model_type "{model_type}" is not supported: {why}.{also} Supported: {", ".join(supported())}.'
    )


def class_conflicts(model_type: str, classes: list[str]) -> tuple[str, ...]:
    """Notes about transformers classes in ``architectures`` that are not those of the model_type."""
    known = {name: owner for owner, found in supported().items() for name in found.classes}
    notes = []
    for name in classes:
        owner = known.get(name)
        if owner is None:
            notes.append(f'architectures names {name}, which is not known; the model_type "{model_type}" decides.')
        elif owner != model_type:
            notes.append(
                f'architectures names {name}, the class of "{owner}", but model_type is "{model_type}"; it decides, '
                "as in transformers."
            )
    return tuple(notes)


def _load(model_type: str) -> Architecture | None:
    if not model_type.isidentifier() or importlib.util.find_spec(f"{_PACKAGE}.{model_type}") is None:
        return None
    found = getattr(importlib.import_module(f"{_PACKAGE}.{model_type}"), "ARCHITECTURE", None)
    return found if isinstance(found, Architecture) else None
