"""`DecisionStore`: the decision log in a database. Knows nothing of requests, policies or HTTP."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from gateway.audit import database
from gateway.audit.anchor import Anchor
from gateway.audit.erasure import Erase, Erased, Miss, Wanted
from gateway.audit.indexing import fill
from gateway.audit.keys import Keyring
from gateway.audit.ledger import Ledger, Pace
from gateway.audit.orphans import closing_rows
from gateway.audit.place import Place, error_name, reason, trouble
from gateway.audit.record import (
    Addendum,
    DecisionRecord,
    EvidenceEvent,
    Feedback,
    OutcomeRecord,
    PolicyChange,
)
from gateway.audit.retention import Limits, Prune
from gateway.audit.schema import (
    Row,
    addenda,
    addendum_row,
    change_row,
    decision_row,
    decisions,
    event_row,
    feedback,
    feedback_row,
    outcome_row,
    outcomes,
    texts,
    writers,
)
from gateway.audit.texts import Captured, text_row
from gateway.audit.writer import GroupWriter
from gateway.errors import AuditUnavailable
from gateway.log import Log, build_log

PRUNE_SECONDS = 600.0
_MISSING_PARENT = ("SQLITE_CONSTRAINT_FOREIGNKEY", "23503")


class _Opened:
    """What opening the log leaves behind: the connection, who we are, and the chain we make."""

    def __init__(
        self, place: Place, ledger: Ledger, busy_seconds: float, clock: Callable[[], float]
    ) -> None:
        self.ledger = ledger
        self._place = place
        self.engine = place.connect(busy_seconds, writable=True)
        self.interrupted = 0
        try:
            with place.enter(self.engine, ledger.writer, busy_seconds) as (connection, is_alive):
                if database.migrate(connection, place):
                    fill(connection)
                ledger.open(connection)
                for rows in closing_rows(connection, is_alive, clock()):
                    ledger.append(connection, rows)
                    self.interrupted += len(rows)
                row = {"writer": ledger.writer, "started_at": clock()}
                connection.execute(sa.insert(writers), row)
            ledger.publish()
        except BaseException:
            self.engine.dispose()
            raise

    def close(self, clean: bool) -> None:
        """Leave; ``clean`` when no decision of ours is open."""
        try:
            self.ledger.commit(self.engine, [self.ledger.closing()])
            if clean:
                with self.engine.begin() as connection:
                    connection.execute(
                        sa.delete(writers).where(writers.c.writer == self.ledger.writer)
                    )
        except (SQLAlchemyError, OSError):
            # The row stays, so the next start looks for open decisions and finds none.
            return
        finally:
            self.engine.dispose()
            self._place.leave()


class DecisionStore:
    """An append-only decision log with group commit. Made by `open`."""

    def __init__(
        self,
        opened: _Opened,
        *,
        max_pending: int,
        checkpoint_seconds: float,
        limits: Limits,
        clock: Callable[[], float],
        log: Log,
    ) -> None:
        self._opened = opened
        self._clock = clock
        self._open_decisions: set[str] = set()
        self._is_certain = True
        """Whether every record that was not acknowledged is known not to be in the log."""
        self._writer = GroupWriter(self._commit, max_pending=max_pending, log=log)
        self._log = log
        self._tasks = [asyncio.create_task(self._keep_sealing(checkpoint_seconds))]
        if limits:
            self._tasks.append(asyncio.create_task(self._keep_pruning(limits)))
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        keys: Keyring | None = None,
        anchor: Anchor | None = None,
        pace: Pace | None = None,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        max_pending: int = 4096,
        busy_seconds: float = 5.0,
        clock: Callable[[], float] = time.time,
        log: Log | None = None,
    ) -> Self:
        """Open the log at ``url``, bring its schema up to date, and close what a crash left open.

        Without ``keys`` the log is not signed. What is beyond ``limits`` is dropped every ten
        minutes. ``busy_seconds`` is how long to wait for a lock of another process. Raises
        ConfigError, or AuditUnavailable for what may pass: a lock, a full disk, a server that is
        away.
        """
        place, log, pace = database.locate(url), log or build_log(), pace or Pace()
        ledger = Ledger(
            uuid.uuid4().hex,
            keys or Keyring(),
            anchor=anchor,
            checkpoint_rows=pace.rows,
            clock=clock,
            log=log,
        )
        try:
            if anchor is not None:
                await asyncio.to_thread(anchor.prepare)
            opened = await asyncio.to_thread(_Opened, place, ledger, busy_seconds, clock)
        except TimeoutError as error:
            message = f"the decision log {place.name} cannot be opened: {error}"
            raise AuditUnavailable(message) from error
        except (SQLAlchemyError, OSError) as error:
            raise trouble(error, place) from error
        return cls(
            opened,
            max_pending=max_pending,
            checkpoint_seconds=pace.seconds,
            limits=limits,
            clock=clock,
            log=log,
        )

    @property
    def interrupted(self) -> int:
        """How many decisions, left open by a crash, were closed at opening."""
        return self._opened.interrupted

    async def append_decision(self, record: DecisionRecord) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        with _recordable("decision"):
            row = decision_row(record, self._opened.ledger.writer)
        await self._writer.write(row, may_refuse=True)

    async def append_outcome(self, record: OutcomeRecord) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so.

        Never refused for want of room: there is at most one for each decision that found room.
        """
        with _recordable("outcome"):
            row = outcome_row(record)
        await self._writer.write(row, may_refuse=False)

    async def append_change(self, record: PolicyChange) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        with _recordable("policy change"):
            row = change_row(record, self._opened.ledger.writer)
        await self._writer.write(row, may_refuse=True)

    async def append_feedback(self, record: Feedback) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        with _recordable("feedback"):
            row = feedback_row(record, self._opened.ledger.writer)
        await self._writer.write(row, may_refuse=True)

    async def append_text(self, captured: Captured) -> None:
        """Return once the text is durable. Raises AuditUnavailable when it cannot be made so."""
        with _recordable("text"):
            row = text_row(captured, self._opened.ledger.writer)
        await self._writer.write(row, may_refuse=True)

    async def append_addendum(self, record: Addendum) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        with _recordable("addendum"):
            row = addendum_row(record, self._opened.ledger.writer)
        await self._writer.write(row, may_refuse=True)

    async def erase(self, wanted: Wanted) -> Erased:
        """Take captured texts out of the log, and say so in the chain. Raises AuditUnavailable.

        In small steps, between which requests are recorded.
        """
        return await self._erase(Erase, wanted)

    async def miss(self, wanted: Wanted) -> int:
        """Say of all texts that are not there that they are erased. Returns of how many requests."""
        return (await self._erase(Miss, wanted)).requests

    async def _erase(self, kind: type[Erase], wanted: Wanted) -> Erased:
        erased, now = 0, self._clock()
        while True:
            step = kind(wanted, self._opened.ledger.writer, now)
            await self._writer.write(step.row(), may_refuse=True)
            if not step.erased:
                break
            erased += step.erased
        is_scrubbed = await asyncio.to_thread(database.scrub, self._opened.engine)
        return Erased(erased, is_scrubbed)

    async def append_event(self, record: EvidenceEvent) -> bool:
        """Return once the record is durable; False where it would say nothing new of the cell.

        Raises AuditUnavailable when it cannot be made so.
        """
        with _recordable("evidence event"):
            row = event_row(record, self._opened.ledger.writer)
        made: list[bool] = []

        def make(connection: sa.Connection) -> Mapping[str, Any] | None:
            values = row.make(connection) if row.make is not None else {}
            # The last word counts: a commit that failed may be tried again.
            made.append(values is not None)
            return values

        await self._writer.write(row._replace(make=make), may_refuse=False)
        return made[-1]

    async def prune(self, limits: Limits) -> int:
        """Drop what is beyond ``limits``, oldest first, and say so in the chain.

        In small steps, between which requests are recorded. Returns how many records were dropped.
        Raises AuditUnavailable.
        """
        dropped, now = 0, self._clock()
        while True:
            step = Prune(limits, self._opened.ledger.writer, now)
            await self._writer.write(step.row(), may_refuse=True)
            if not step.dropped:
                return dropped
            dropped += step.dropped

    async def aclose(self) -> None:
        """Write what is pending and close. Idempotent; a cancelled wait does not stop it."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._writer.aclose()
        is_clean = self._is_certain and not self._open_decisions
        await asyncio.to_thread(self._opened.close, is_clean)

    async def _keep_sealing(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self._writer.write(self._opened.ledger.checkpoint(), may_refuse=True)
            except AuditUnavailable:
                # Whoever has a record to write is told; a later checkpoint says as much.
                continue

    async def _keep_pruning(self, limits: Limits) -> None:
        while True:
            try:
                if dropped := await self.prune(limits):
                    self._log.info("log_pruned", records=dropped)
            except AuditUnavailable as error:
                self._log.error("log_not_pruned", error=error.message)
            await asyncio.sleep(PRUNE_SECONDS)

    def _commit(self, rows: Sequence[Row]) -> Sequence[AuditUnavailable | None]:
        try:
            self._opened.ledger.commit(self._opened.engine, rows)
        except IntegrityError as error:
            if len(rows) > 1:
                # One bad record must not cost its neighbours their commit.
                return [self._commit([row])[0] for row in rows]
            return [AuditUnavailable(_broken_rule(rows[0], error))]
        except (SQLAlchemyError, OSError) as error:
            self._is_certain = False
            message = f"the decision log cannot be written: {reason(error)}"
            return [AuditUnavailable(message)] * len(rows)
        for row in rows:
            if row.table is decisions:
                self._open_decisions.add(row.values["decision_id"])
            elif row.table is outcomes:
                self._open_decisions.discard(row.values["decision_id"])
        return [None] * len(rows)


@contextmanager
def _recordable(what: str) -> Iterator[None]:
    """Raises AuditUnavailable for a record that cannot be written down."""
    try:
        yield
    except ValueError as error:
        raise AuditUnavailable(f"the {what} cannot be recorded: {error}") from error


def _broken_rule(row: Row, error: IntegrityError) -> str:
    decision_id = row.values.get("decision_id")
    if decision_id is None:
        return f"the log refuses a row of {row.table.name}: {reason(error)}"
    if error_name(error) in _MISSING_PARENT:
        what = {feedback: "feedback", texts: "a text", addenda: "an addendum"}
        return (
            f"the log has no decision {decision_id} to give {what.get(row.table, 'an outcome')} to"
        )
    kind = {decisions: "a decision", texts: "a text of"}.get(row.table, "an outcome")
    return f"the log has {kind} {decision_id} already: {reason(error)}"
