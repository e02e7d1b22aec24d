"""Text out of tokens that come one by one."""

from typing import Protocol

REPLACEMENT = "\ufffd"  # what decoders write for bytes that are no UTF-8


class Decoder(Protocol):
    """What streaming needs of a tokenizer; see ``Text``."""

    def decode(self, ids: list[int]) -> str: ...

    def is_silent(self, token: int) -> bool: ...

    def is_byte(self, token: int) -> bool: ...


class StreamDecoder:
    """Turns tokens into text as they come: all pieces together equal the decoding of all tokens at once.

    A character whose bytes are not yet complete is held back. A run of byte tokens (<0xE2> <0x82> <0xAC>) is held back
    to its end, because one wrong byte turns the whole run into U+FFFD.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        # Decoders treat the start of a text differently (a first space is dropped), so later tokens are decoded behind
        # one earlier token, whose own text is then cut off.
        self._before: list[int] = []
        self._width = 0  # characters of that token
        self._pending: list[int] = []
        self._shown = 0  # characters of the decoded window that are already out

    def feed(self, token: int) -> str:
        """The text that has become certain with this token; often "" inside a character."""
        if self._decoder.is_silent(token):
            return ""
        self._pending.append(token)
        if self._decoder.is_byte(token):
            return ""
        text = self._decoder.decode(self._before + self._pending)
        certain = text.rstrip(REPLACEMENT)
        piece = certain[self._shown :]
        self._shown = max(self._shown, len(certain))
        if certain == text:
            self._restart_behind(token)
        return piece

    def flush(self) -> str:
        """What is still held back, as decoding everything at once would end; the next token begins a new text."""
        piece = self._decoder.decode(self._before + self._pending)[self._shown :]
        self._before, self._pending, self._width, self._shown = [], [], 0, 0
        return piece

    def _restart_behind(self, token: int) -> None:
        """Forget the decoded tokens except one that has a text of its own (a lone space has none at a start)."""
        width = len(self._decoder.decode([token]))
        if width:
            self._before, self._width = [token], width
        if self._before:
            self._pending, self._shown = [], self._width
