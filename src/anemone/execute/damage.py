"""One clear error for whatever a damaged package provokes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import prod

from anemone.errors import AnemoneError, ExecuteError
from anemone.execute.dtypes import Shape

_MOST_SIZES = 32  # numpy's limit before version 2
_SHOWN = 200  # characters of a cause


@contextmanager
def blamed_on(what: str, verdict: str = "is damaged") -> Iterator[None]:
    """Turn any error but this project's own into an ExecuteError about ``what``."""
    try:
        yield
    except AnemoneError:
        raise
    except MemoryError as error:
        raise ExecuteError(f"{what} needs more memory than there is") from error
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:_SHOWN]
        raise ExecuteError(f"{what} {verdict}: {cause}") from error


def check_size(shape: Shape, name: str) -> None:
    """Raise ExecuteError when a tensor of this shape cannot be held; sizes of -1 count as one."""
    if len(shape) > _MOST_SIZES:
        raise ExecuteError(f"{name!r} has {len(shape)} dimensions; no more than {_MOST_SIZES} are possible")
    elements = prod(max(abs(size), 1) for size in shape)
    if 4 * elements > _memory():
        raise ExecuteError(
            f"{name!r} is declared as {list(shape)}: {elements} elements take more than the {_memory()} bytes "
            "of this machine's memory"
        )


@cache
def _memory() -> int:
    """Bytes of physical memory; 64 GB where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 36
