"""Token ids to text, piece by piece: never half a character, never part of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Turns a growing list of token ids into text that is only ever appended to.

    ``decode`` maps token ids to text. The pieces put together equal ``decode`` of all ids.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._token_ids: list[int] = []
        # The window starts one piece before what is not out yet, because a tokenizer may treat the
        # first token it is given differently (a leading space, say).
        self._window = 0
        self._read = 0
        self._before = ""
        self._shown = 0

    def push(self, token_id: int) -> str:
        """Add one token; return the text that is now certain."""
        self._token_ids.append(token_id)
        text = self._pending()
        # A replacement character at the end may be the start of a character still to be completed.
        certain = text.rstrip(_REPLACEMENT)
        piece, self._shown = certain[self._shown :], len(certain)
        if len(certain) == len(text):
            self._advance()
        return piece

    def flush(self) -> str:
        """Return what is left, as the end of the text, incomplete characters included."""
        piece = self._pending()[self._shown :]
        self._advance()
        return piece

    def _pending(self) -> str:
        return self._decode(self._token_ids[self._window :])[len(self._before) :]

    def _advance(self) -> None:
        self._window, self._read = self._read, len(self._token_ids)
        self._before = self._decode(self._token_ids[self._window : self._read])
        self._shown = 0


class StopStrings:
    """Finds the first stop string in a text that comes in pieces; holds back what may begin one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._longest = max((len(text) for text in self._stop), default=1)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Add text; return the part that is safe to show, and whether a stop string was found."""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            return self._take(min(found)), True
        return self._take(len(self._held) - self._possible_start()), False

    def flush(self) -> str:
        """The held text, once nothing more can come."""
        return self._take(len(self._held))

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text
