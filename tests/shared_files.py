"""Real checkpoints, texts and configs that some tests use; such tests skip where the folder is absent."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("ANEMONE_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def shared(path: str) -> Path:
    """The file or folder under the shared folder, or skip."""
    found = ROOT / path
    if not found.exists():
        pytest.skip(f"{path} is not in the shared folder ({ROOT})", allow_module_level=True)
    return found
