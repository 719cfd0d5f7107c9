"""Server-sent events with exact bytes, and the watch for clients that leave.

The framework's own streaming is not used: it cancels the generator in a way that interrupts its
clean-up. Here a client that leaves only cancels the reply, and everything else runs to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response
from litestar.app import Litestar
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send

from gateway.api.errors import ClientGone
from gateway.api.headers import of_receipt
from gateway.reply import Reply

T = TypeVar("T")

HEARTBEAT = b": keep-alive\n\n"
MEDIA_TYPE = "text/event-stream"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def frame(event: object) -> bytes:
    """One event as it goes over the wire; JSON has no line breaks of its own."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


class Patience(msgspec.Struct, frozen=True):
    """How long a stream may keep its client waiting, in seconds."""

    seconds: float
    """For its headers: until then a failure is an error response."""
    heartbeat: float
    """For its next bytes: then a sign of life is sent, so that nothing between takes it for dead."""


class EventStream(Response[None]):
    """A reply as server-sent events; the reply is cancelled when the client leaves.

    What becomes of a reply that is never sent is not decided here: its request ends it.
    """

    def __init__(
        self,
        reply: Reply,
        frames: AsyncIterator[bytes],
        *,
        heartbeat: float,
        sign: bytes = HEARTBEAT,
    ) -> None:
        """After ``heartbeat`` seconds of silence ``sign`` is sent."""
        super().__init__(None, headers={**of_receipt(reply.receipt), **_HEADERS}, status_code=200)
        self._reply = reply
        self._frames = frames
        self._heartbeat = (heartbeat, sign)

    def to_asgi_response(
        self, app: Litestar | None, request: Request[Any, Any, Any], **options: Any
    ) -> ASGIResponse:
        """The ASGI application that sends the stream."""
        given = dict(options.get("headers") or {})
        return _StreamingResponse(
            self._reply,
            self._frames,
            self._heartbeat,
            headers=given | self.headers,
            cookies=[*self.cookies, *(options.get("cookies") or ())],
        )


class _StreamingResponse(ASGIResponse):
    _should_set_content_length = False

    def __init__(
        self,
        reply: Reply,
        frames: AsyncIterator[bytes],
        heartbeat: tuple[float, bytes],
        **options: Any,
    ) -> None:
        super().__init__(media_type=MEDIA_TYPE, **options)
        self._reply = reply
        self._frames = frames
        self._heartbeat, self._sign = heartbeat
        self._sending = asyncio.Lock()
        self._sent_at = 0.0

    async def send_body(self, send: Send, receive: Receive) -> None:
        watch = asyncio.create_task(_disconnected(receive))
        # The reply then ends with an error, so the loop below never waits for a client that left.
        watch.add_done_callback(lambda _: self._reply.cancel())
        beat = asyncio.create_task(self._beat(send))
        beat.add_done_callback(self._end_with)
        try:
            async for piece in self._frames:
                await self._send(send, piece)
            beat.cancel()
            async with self._sending:  # a sign of life that is on its way goes first
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.cancel()
            beat.cancel()

    def _end_with(self, beat: asyncio.Task[None]) -> None:
        """A sign of life that could not be sent tells that nobody reads."""
        if not beat.cancelled() and beat.exception() is not None:
            self._reply.cancel()

    async def _send(self, send: Send, piece: bytes) -> None:
        async with self._sending:
            self._sent_at = asyncio.get_running_loop().time()
            await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _beat(self, send: Send) -> None:
        """A sign of life after each silence; it ends with the stream."""
        clock = asyncio.get_running_loop().time
        # The headers have just been sent.
        self._sent_at = max(self._sent_at, clock())
        while True:
            await asyncio.sleep(max(self._sent_at + self._heartbeat - clock(), 0.001))
            if clock() >= self._sent_at + self._heartbeat and not self._sending.locked():
                await self._send(send, self._sign)


async def until_disconnect(request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client leaves.

    The request's body must have been read. Raises ClientGone. When this call is itself cancelled,
    a result that is there already is lost: what must be ended belongs to the request's lifetime.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watch.cancel()
        task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
