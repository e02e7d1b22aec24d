"""Errors that a user can act on: each message says what, the value, the limit and what to do.

The command line prints the message alone and ends with ``exit_code``; anything else is a bug and shows a traceback.
"""


class AnemoneError(Exception):
    """Base of all errors meant for people. Exit code 2: bad input or usage."""

    exit_code = 2


class CheckpointError(AnemoneError):
    """The checkpoint's files are missing, damaged or contradict each other."""


class UnsupportedModel(AnemoneError):
    """The checkpoint is readable, but computing it correctly needs something that is not built."""


class RecipeError(AnemoneError):
    """A requested conversion setting cannot work."""


class PackageError(AnemoneError):
    """A .mlpackage or a bundle cannot be read or written."""


class ExecuteError(AnemoneError):
    """A program or its inputs cannot be executed."""


class RequestError(AnemoneError):
    """A model cannot do what it is asked: the prompt, the conversation or a setting of the generation."""


class GateFailed(AnemoneError):
    """A measured result missed its limit; ``result`` is the work that was done all the same."""

    exit_code = 1

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result


class NeedsMac(AnemoneError):
    """Only macOS can do this."""

    exit_code = 3
