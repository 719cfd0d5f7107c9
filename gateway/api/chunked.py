"""The dialect of completions: unnamed events, ``[DONE]`` at the end, the error object where it fails."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.api.errors import body_of
from gateway.api.render import Event, Rendering, stream, whole
from gateway.api.requests import Asked
from gateway.api.sse import HEARTBEAT, frame
from gateway.errors import GatewayError
from gateway.reply import Reply

DONE = b"data: [DONE]\n\n"


class Chunked:
    """A `gateway.api.answer.Dialect` of the Chat Completions API and of the one before it."""

    sign = HEARTBEAT

    def __init__(self, rendering: Rendering, asked: Asked) -> None:
        self._rendering = rendering
        self._n = asked.request.n
        self._included = {
            "include_usage": asked.include_usage,
            "include_steps": asked.include_steps,
        }

    async def frames(self, reply: Reply) -> AsyncIterator[bytes]:
        """One that fails midway ends with the error object and without DONE."""
        events = stream(reply, self._rendering, self._n, **self._included)
        try:
            async for event in events:
                yield frame(event)
        except GatewayError as error:
            yield frame(body_of(error))
            return
        yield DONE

    async def whole(self, reply: Reply) -> Event:
        """Raises the reply's GatewayError, with the receipt."""
        return await whole(reply, self._rendering, self._n)
