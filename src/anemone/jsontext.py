"""JSON that every reader accepts."""

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, indent: int | None = None) -> str:
    """``value`` as JSON text. NaN and infinities, which JSON has no words for, become null."""
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
