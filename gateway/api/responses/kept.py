"""Responses that are kept in memory, so that the next request can go on from them.

A caller finds its own and nobody else's. What does not fit is forgotten, the oldest first.
"""

from __future__ import annotations

import msgspec

from gateway.errors import NotFound, cut
from gateway.types import Message

_OVERHEAD = 512
"""Bytes that are counted for a message or a response whatever it says."""


class KeptResponse(msgspec.Struct, frozen=True):
    """One response."""

    body: bytes
    """The response as JSON."""
    turns: tuple[Message, ...]
    """The conversation, the response at its end."""

    @property
    def size(self) -> int:
        """About its bytes. What two conversations share counts in both."""
        said = sum(len(turn.text.encode()) + _OVERHEAD for turn in self.turns)
        return len(self.body) + said + _OVERHEAD


class Kept:
    """So many responses of each caller, and so many bytes of all callers together.

    Where the bytes run out, the caller with most of them loses its oldest: nobody can push the
    responses of others out.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._callers: dict[str, dict[str, tuple[KeptResponse, int]]] = {}
        self._sizes: dict[str, int] = {}

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._max_responses > 0 and self._max_bytes > 0

    @property
    def size(self) -> int:
        """The bytes of everything kept."""
        return sum(self._sizes.values())

    def add(self, caller_id: str, response_id: str, response: KeptResponse) -> None:
        """Keep it, as far as there is room."""
        size = response.size
        if not self.keeps or size > self._max_bytes:
            return
        if response_id in self._callers.get(caller_id, {}):
            self._forget(caller_id, response_id)
        mine = self._callers.setdefault(caller_id, {})
        mine[response_id] = (response, size)
        self._sizes[caller_id] = self._sizes.get(caller_id, 0) + size
        if len(mine) > self._max_responses:
            self._forget_oldest(caller_id)
        while self.size > self._max_bytes:
            self._forget_oldest(max(self._sizes, key=lambda caller: self._sizes[caller]))

    def get(self, caller_id: str, response_id: str) -> KeptResponse:
        """The response of this caller. Raises NotFound."""
        found = self._callers.get(caller_id, {}).get(response_id)
        if found is None:
            raise NotFound(
                f"The response {cut(response_id)!r} is not kept here: it never was, was deleted, "
                "or was pushed out by newer ones.",
                param="response_id",
            )
        return found[0]

    def remove(self, caller_id: str, response_id: str) -> None:
        """Forget it. Raises NotFound."""
        self.get(caller_id, response_id)
        self._forget(caller_id, response_id)

    def _forget_oldest(self, caller_id: str) -> None:
        self._forget(caller_id, next(iter(self._callers[caller_id])))

    def _forget(self, caller_id: str, response_id: str) -> None:
        mine = self._callers[caller_id]
        _, size = mine.pop(response_id)
        self._sizes[caller_id] -= size
        if not mine:
            del self._callers[caller_id], self._sizes[caller_id]
