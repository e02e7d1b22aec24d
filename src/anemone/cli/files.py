"""Reading files that people name on the command line."""

from pathlib import Path

from anemone.errors import RequestError


def read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path} is not UTF-8 text; convert it first.") from None
