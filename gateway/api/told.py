"""The dialects of the Responses API and of Anthropic's: events with names, told in their order.

An answer without ``stream`` is told in the same way and only shown at its end, so that both forms
agree.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from gateway.api.render import Event, read_all
from gateway.api.sse import HEARTBEAT, frame
from gateway.chunk import Chunk
from gateway.errors import GatewayError
from gateway.reply import Receipt, Reply


class Teller(Protocol):
    """Tells one answer. Every event has its name as ``type``."""

    def add(self, chunk: Chunk) -> Sequence[Event]:
        """The events of the next chunk."""
        ...

    def end(self, error: GatewayError | None = None) -> Sequence[Event]:
        """The last events; with an error, those of an answer that broke off."""
        ...

    def whole(self) -> Event:
        """All of the answer in one object, once it has ended."""
        ...


class Told:
    """A `gateway.api.answer.Dialect` of named events."""

    def __init__(self, tell: Callable[[Receipt], Teller], *, sign: bytes = HEARTBEAT) -> None:
        """``tell`` makes the teller of an answer."""
        self._tell = tell
        self.sign = sign

    async def frames(self, reply: Reply) -> AsyncIterator[bytes]:
        """The stream, to its end or to its failure."""
        teller = self._tell(reply.receipt)
        try:
            async for chunk in reply:
                for event in teller.add(chunk):
                    yield named(event)
        except GatewayError as error:
            last = teller.end(error)
        else:
            last = teller.end()
        for event in last:
            yield named(event)

    async def whole(self, reply: Reply) -> Event:
        """Raises the reply's GatewayError, with the receipt."""
        teller = self._tell(reply.receipt)
        await read_all(reply, teller.add)
        teller.end()
        return teller.whole()


def named(event: Event) -> bytes:
    """One event as it goes over the wire, with its name before it."""
    return f"event: {event['type']}\n".encode() + frame(event)
