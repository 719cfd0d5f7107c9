"""`Shadows`: decodes a share of the answers again in standard mode, after their end, and records it.

One at a time, and only with what nobody else wants. Nothing here can delay or spoil an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.again import compare
from gateway.audit.base import AddendumLog
from gateway.audit.record import DecisionRecord, Shadow
from gateway.backends.base import Redecoder
from gateway.errors import AuditUnavailable
from gateway.execution import Execution
from gateway.log import Log, build_log
from gateway.routing.tighten import standard
from gateway.telemetry import Telemetry
from gateway.types import ChatRequest, Job, Mode

MAX_WAITING = 32


class _Waiting(NamedTuple):
    decision_id: str
    backend: Redecoder
    job: Job
    emitted: Sequence[Sequence[int]]


class Shadows:
    """The shadow runs of one gateway."""

    def __init__(
        self,
        addenda: AddendumLog,
        telemetry: Telemetry,
        *,
        max_waiting: int = MAX_WAITING,
        clock: Callable[[], float] = time.time,
        log: Log | None = None,
    ) -> None:
        self._addenda = addenda
        self._telemetry = telemetry
        self._max_waiting = max_waiting
        self._clock = clock
        self._log = log or build_log()
        self._waiting: deque[_Waiting] = deque()
        self._running: _Waiting | None = None
        self._worker: asyncio.Task[None] | None = None
        self._recording: set[asyncio.Task[None]] = set()
        self._closing = False

    def wants(self, record: DecisionRecord, run: Execution) -> bool:
        """Whether the answer is one of those to be decoded again."""
        rate = record.decision.shadow_rate
        drafted = run.mode not in (None, Mode.STANDARD)
        return drafted and is_chosen(record.decision_id, rate)

    def offer(
        self, record: DecisionRecord, backend: Redecoder, job: Job, emitted: Sequence[Sequence[int]]
    ) -> None:
        """Decode ``job``, which gave ``emitted``, again when there is room. Returns at once."""
        waiting = _Waiting(record.decision_id, backend, _slim(job), emitted)
        if self._closing or len(self._waiting) >= self._max_waiting:
            self._drop(waiting, "shutdown" if self._closing else "queue_full")
            return
        self._waiting.append(waiting)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def aclose(self) -> None:
        """Drop what waits and runs, and say so in the log. Idempotent."""
        self._closing = True
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])
        if self._running is not None:
            self._waiting.appendleft(self._running)
            self._running = None
        while self._waiting:
            self._drop(self._waiting.popleft(), "shutdown")
        while self._recording:
            await asyncio.wait(tuple(self._recording))

    async def _work(self) -> None:
        while self._waiting:
            self._running = self._waiting.popleft()
            shadow = await self._result(self._running)
            self._running = None
            self._record(shadow)

    async def _result(self, waiting: _Waiting) -> Shadow:
        try:
            run = await waiting.backend.decode_again(waiting.job, patient=True)
            if run is None:
                return self._dropped(waiting, "evicted")
            found = compare(waiting.emitted, run.answers)
        except Exception:  # noqa: BLE001 - logged: nobody waits for this run
            self._log.exception("shadow_run_failed", decision_id=waiting.decision_id)
            return self._dropped(waiting, "failed")
        return Shadow(
            decision_id=waiting.decision_id,
            added_at=self._clock(),
            result="equal" if found.equal else "different",
            num_tokens=found.num_tokens,
            answer=found.answer,
            position=found.position,
            margin=found.margin,
            fingerprint=run.execution.fingerprint,
        )

    def _dropped(self, waiting: _Waiting, reason: str) -> Shadow:
        return Shadow(
            decision_id=waiting.decision_id,
            added_at=self._clock(),
            result="dropped",
            reason=reason,
        )

    def _drop(self, waiting: _Waiting, reason: str) -> None:
        self._record(self._dropped(waiting, reason))

    def _record(self, shadow: Shadow) -> None:
        self._telemetry.shadowed(shadow)
        self._spawn(self._append(shadow))

    async def _append(self, shadow: Shadow) -> None:
        try:
            await self._addenda.append_addendum(shadow)
        except AuditUnavailable as error:
            self._telemetry.audit_failed("shadow")
            self._log.error(
                "shadow_not_recorded", decision_id=shadow.decision_id, error=error.message
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)


def _slim(job: Job) -> Job:
    """The same work in standard mode, without what is not needed for it: it may wait for long."""
    request = job.request
    bare = ChatRequest(
        request.model, sampling=request.sampling, n=request.n, best_of=request.best_of
    )
    return msgspec.structs.replace(
        job, request=bare, decision=standard(job.decision, "shadow run"), review=None
    )


def is_chosen(decision_id: str, rate: float) -> bool:
    """Whether a request is one of the share ``rate`` that is decoded again: by its id alone."""
    bits = hashlib.sha256(f"draftgate shadow 1\n{decision_id}".encode()).digest()[:8]
    return int.from_bytes(bits) < rate * 2**64
