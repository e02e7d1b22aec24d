"""The words of MIL text, one line at a time, and errors that say where they are.

Two things that fill most of a program are single tokens, for speed: a whole tensor type, and the innermost row of an
array. Every pattern is possessive or bounded by the next bracket or quote, so that no text takes more than linear time.
"""

import re

from anemone.errors import ExecuteError

_TOKEN = re.compile(
    r"""
      tensor<\ *\w++\ *,\ *\[[-\w?,\ ]*+\]\ *>   # a tensor type
    | [A-Za-z_][\w.@$]*+                          # a name or a keyword
    | "(?:[^"\\]|\\.)*+"?                         # a string; without its last quote at the end of a line
    | \[[-+\w.?,\ \t]*+\]                         # a row: sizes, numbers or booleans
    | [-+]?[\d.][\w.]*+(?:(?<=[pPeE])[-+]\d++)?   # a number
    | [-+][a-z]++                                 # a signed inf or nan
    | ->
    | \S
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_NAME = re.compile(r"[A-Za-z_][\w.@$]*+", re.ASCII)
_SHOWN = 40  # characters of a token in a message


class Tokens:
    """A cursor over the tokens of a text; ``current`` is "" at its end."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self._lines = text.split("\n")
        self._line = -1
        self._tokens: list[str] = []
        self._index = 0
        self.current = ""
        self.advance()

    def advance(self) -> str:
        """Go to the next token and return the one before it."""
        before = self.current
        self._index += 1
        while self._index >= len(self._tokens):
            if self._line + 1 >= len(self._lines):
                self.current = ""
                return before
            self._line += 1
            self._tokens = _TOKEN.findall(self._lines[self._line])
            self._index = 0
        self.current = self._tokens[self._index]
        return before

    def accept(self, token: str) -> bool:
        """Pass the token if it is the current one."""
        if self.current != token:
            return False
        self.advance()
        return True

    def expect(self, token: str, where: str = "") -> None:
        """Pass the token. Raises ExecuteError when the current one is another."""
        if self.current != token:
            raise self.error(f"'{token}'{f' {where}' if where else ''}")
        self.advance()

    def name(self, what: str) -> str:
        """Pass a name. Raises ExecuteError."""
        if not _NAME.fullmatch(self.current):
            raise self.error(what)
        return self.advance()

    def string(self, what: str) -> str:
        """Pass a string and return what it says. Raises ExecuteError."""
        token = self.current
        if len(token) < 2 or token[0] != '"' or token[-1] != '"':
            raise self.error(what)
        self.advance()
        body = token[1:-1]
        return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), body) if "\\" in body else body

    def error(self, expected: str) -> ExecuteError:
        """An error at the current token, which should have been ``expected``."""
        found = repr(self.current[:_SHOWN]) if self.current else "the end of the text"
        return self.fault(f"expected {expected}, found {found}")

    def fault(self, problem: str) -> ExecuteError:
        """An error at the current token."""
        line = min(max(self._line, 0), len(self._lines) - 1)
        spans = [match.start() for match in _TOKEN.finditer(self._lines[line])]
        column = spans[self._index] if self._index < len(spans) else len(self._lines[line])
        return ExecuteError(f"{self.source} line {line + 1}, column {column + 1}: {problem}")
