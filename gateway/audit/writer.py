"""Group commit: one thread writes, in one transaction, the rows that came during its last one.

So durability costs one fsync for many requests, and hardly a request waits for more than two.
Knows nothing of records, nor of what a commit is.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.audit.schema import Row
from gateway.errors import AuditUnavailable
from gateway.log import Log

MAX_BATCH = 512

Commit = Callable[[Sequence[Row]], Sequence[AuditUnavailable | None]]
"""Makes rows durable in the order given and says for each why it failed, or None."""


class _Pending(NamedTuple):
    row: Row
    done: asyncio.Future[None]


class GroupWriter:
    """A thread, and the rows that wait for it. Belongs to the event loop it was made in."""

    def __init__(self, commit: Commit, *, max_pending: int, log: Log) -> None:
        self._commit = commit
        self._max_pending = max_pending
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_Pending] = deque()
        self._changed = threading.Condition()
        self._closing = False
        # A daemon: a gateway that never closed its log must still be able to exit.
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._thread.start()

    async def write(self, row: Row, *, may_refuse: bool) -> None:
        """Return once ``row`` is durable. A cancelled wait does not take the row back.

        Raises AuditUnavailable when the write failed, the writer is closed, or, with
        ``may_refuse``, too many rows are waiting.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        with self._changed:
            if self._closing:
                raise AuditUnavailable("the decision log is closed")
            if may_refuse and len(self._pending) >= self._max_pending:
                raise AuditUnavailable("too many decisions wait to be recorded", retry_after=1)
            self._pending.append(_Pending(row, done))
            self._changed.notify()
        await done

    async def aclose(self) -> None:
        """Write what is waiting, then end the thread. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while batch := self._take():
            failures = self._try_commit([pending.row for pending in batch])
            try:
                self._loop.call_soon_threadsafe(self._settle, batch, failures)
            except RuntimeError:
                # The loop is closed, so nobody waits any more; the rows are written all the same.
                continue

    def _take(self) -> list[_Pending]:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            count = min(MAX_BATCH, len(self._pending))
            return [self._pending.popleft() for _ in range(count)]

    def _try_commit(self, rows: Sequence[Row]) -> Sequence[AuditUnavailable | None]:
        try:
            return self._commit(rows)
        except Exception as error:  # noqa: BLE001 - were the thread to die, every request would hang
            return [AuditUnavailable(f"the decision log failed: {error}")] * len(rows)

    def _settle(
        self, batch: Sequence[_Pending], failures: Sequence[AuditUnavailable | None]
    ) -> None:
        for (row, done), failure in zip(batch, failures, strict=True):
            if done.done():
                if failure is not None:
                    self._log.error(
                        "record_lost",
                        table=row.table.name,
                        decision_id=row.values.get("decision_id"),
                        error=failure.message,
                    )
            elif failure is None:
                done.set_result(None)
            else:
                # One exception object raised in many tasks would grow all their tracebacks.
                done.set_exception(
                    AuditUnavailable(failure.message, retry_after=failure.retry_after)
                )
