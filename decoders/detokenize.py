"""Token ids to text, piece by piece: never half a character, never part of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
# A character is cut short by at most 3 of its bytes, each of which may show as one replacement.
_MAX_INCOMPLETE = 3
# More tokens than this without a certain end are garbage; looking back further costs and gains nothing.
_MAX_WINDOW = 32
_SHORT_WINDOW = 8


class Detokenizer:
    """Turns a growing list of token ids into text that is only ever appended to.

    ``decode`` maps token ids to text. The pieces put together equal ``decode`` of all ids.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._token_ids: list[int] = []
        # The window starts one piece before what is not out yet, because a tokenizer may treat the
        # first token it is given differently (a leading space, say). `_shown` counts characters of
        # the window's text.
        self._window = 0
        self._read = 0
        self._shown = 0

    def push(self, token_id: int) -> str:
        """Add one token; return the text that is now certain."""
        self._token_ids.append(token_id)
        text = self._window_text()
        # Replacement characters at the end may be the start of a character still to be completed.
        doubtful = min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_INCOMPLETE)
        piece = self._show(text[: len(text) - doubtful])
        if not doubtful:
            self._slide(self._read, hidden=0)
        elif len(self._token_ids) - self._window > _MAX_WINDOW:
            self._slide(len(self._token_ids) - _SHORT_WINDOW, hidden=len(text) - self._shown)
        return piece

    def flush(self) -> str:
        """Return what is left, as the end of the text, incomplete characters included."""
        piece = self._show(self._window_text())
        self._slide(self._read, hidden=0)
        return piece

    def _window_text(self) -> str:
        return self._decode(self._token_ids[self._window :])

    def _show(self, certain: str) -> str:
        piece = certain[self._shown :]
        self._shown = max(self._shown, len(certain))
        return piece

    def _slide(self, window: int, *, hidden: int) -> None:
        """Start the window at token ``window``; all of its text but the last ``hidden`` is out."""
        self._window, self._read = window, len(self._token_ids)
        self._shown = len(self._window_text()) - hidden


class StopStrings:
    """Finds the first stop string in a text that comes in pieces; holds back what may begin one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._longest = max((len(text) for text in self._stop), default=1)
        self._held = ""
        self.found: str | None = None
        """The one that ended the text."""

    def push(self, text: str) -> tuple[str, bool]:
        """Add text; return the part that is safe to show, and whether a stop string was found."""
        self._held += text
        found = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.found = min(found, key=lambda place: place[0])
            return self._take(at), True
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
