"""`Reply`: one answer in progress. A producer task fills a bounded queue, the reader empties it.

The task belongs to whoever started the reply, not to the HTTP response, so that its clean-up
survives a client that leaves. It knows nothing of policies, backends or wire formats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from gateway.chunk import Chunk
from gateway.errors import BackendFailed, GatewayError, Unavailable
from gateway.types import Decision

MAX_WAITING_CHUNKS = 64

Emit = Callable[[Chunk], Awaitable[None]]
Produce = Callable[[Emit], Coroutine[Any, Any, None]]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may be told about its request once that is decided, whatever comes of it."""

    request_id: str
    decision_id: str
    created_at: float
    """Seconds since the epoch, UTC."""
    decision: Decision
    prompt_tokens: int
    fingerprint: str = ""
    """That of the model."""


class Reply:
    """The chunks of one answer, in order; iterate it once.

    It raises the producer's GatewayError, or Unavailable when it was cancelled from elsewhere.
    """

    def __init__(
        self, receipt: Receipt, produce: Produce, *, size: int = MAX_WAITING_CHUNKS
    ) -> None:
        self.receipt = receipt
        self._queue: asyncio.Queue[Chunk | GatewayError | None] = asyncio.Queue(size)
        self._next: Chunk | GatewayError | None = None
        self._primed = False
        self._ended = False
        self._cancelled = False
        self._task = asyncio.create_task(self._run(produce), name=f"reply {receipt.decision_id}")
        self._task.add_done_callback(self._end_when_cancelled)

    @property
    def request_id(self) -> str:
        """The caller's own id for the request, or the one it was given."""
        return self.receipt.request_id

    @property
    def decision_id(self) -> str:
        """The key of the decision and outcome records."""
        return self.receipt.decision_id

    @property
    def decision(self) -> Decision:
        """What the policy chose."""
        return self.receipt.decision

    @property
    def created_at(self) -> float:
        """When the request arrived, in seconds since the epoch, UTC."""
        return self.receipt.created_at

    async def prime(self, patience: float | None = None) -> None:
        """Wait for the first chunk: a failure before it is raised here, with nothing half sent.

        After ``patience`` seconds it returns without one, and iterating raises what then fails.
        """
        try:
            async with asyncio.timeout(patience):
                self._next = await self._queue.get()
        except TimeoutError:
            return
        self._primed = True
        if isinstance(self._next, GatewayError):
            self._ended = True
            raise self._next

    def cancel(self) -> None:
        """Stop the producer. Returns at once; may be called at any time and more than once."""
        if not self._cancelled:  # a second one would interrupt the producer's clean-up
            self._cancelled = True
            self._task.cancel()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the producer has ended, however it ended."""
        self._task.add_done_callback(lambda _: callback())

    async def wait(self) -> None:
        """Return when the producer has ended; raise nothing of its."""
        await asyncio.wait([self._task])

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> Chunk:
        if self._ended:
            raise StopAsyncIteration
        if self._primed:
            item, self._primed = self._next, False
        else:
            item = await self._queue.get()
        if isinstance(item, Chunk):
            return item
        self._ended = True
        if item is None:
            raise StopAsyncIteration
        raise item

    async def _run(self, produce: Produce) -> None:
        end: GatewayError | None = None
        try:
            await produce(self._queue.put)
        except GatewayError as error:
            end = error
        except Exception as error:  # noqa: BLE001 - a reader must never wait for ever
            end = BackendFailed(detail=f"{type(error).__name__}: {error}")
            end.__cause__ = error
        await self._queue.put(end)

    def _end_when_cancelled(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            return
        # What is still waiting was generated but is not wanted; room is made for the end.
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(Unavailable("The answer was cancelled before it was complete."))
