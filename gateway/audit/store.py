"""`DecisionStore`: the decision log in a database. Knows nothing of requests, policies or HTTP."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from gateway.audit import database, presence
from gateway.audit.orphans import close_orphans
from gateway.audit.record import DecisionRecord, Feedback, OutcomeRecord, PolicyChange
from gateway.audit.schema import (
    Row,
    change_row,
    decision_row,
    decisions,
    feedback,
    feedback_row,
    outcome_row,
    outcomes,
    policy_changes,
    writers,
)
from gateway.audit.writer import GroupWriter
from gateway.errors import AuditUnavailable
from gateway.log import Log, build_log


class _Opened:
    """What opening the log leaves behind: the connection, the lock, and who we are."""

    def __init__(self, path: Path, busy_seconds: float, clock: Callable[[], float]) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self.writer = uuid.uuid4().hex
        self.engine = database.connect_writer(path, busy_seconds)
        directory = presence.directory(path)
        try:
            with presence.gate(directory, busy_seconds):
                with self.engine.begin() as connection:
                    database.migrate(connection, path)
                    living = presence.living(directory)
                    self.interrupted = close_orphans(connection, living, clock())
                    row = {"writer": self.writer, "started_at": clock()}
                    connection.execute(sa.insert(writers), row)
                self.inode = os.stat(path).st_ino
                self.presence = presence.Presence(directory, self.writer)
        except BaseException:
            self.engine.dispose()
            raise

    def close(self, clean: bool) -> None:
        """Leave; ``clean`` when no decision of ours is open."""
        try:
            if clean:
                with self.engine.begin() as connection:
                    connection.execute(sa.delete(writers).where(writers.c.writer == self.writer))
        except SQLAlchemyError:
            # The row stays, so the next start looks for open decisions and finds none.
            return
        finally:
            self.engine.dispose()
            self.presence.release()


class DecisionStore:
    """An append-only decision log with group commit. Made by `open`."""

    def __init__(self, opened: _Opened, max_pending: int, log: Log) -> None:
        self._opened = opened
        self._open_decisions: set[str] = set()
        self._writer = GroupWriter(self._commit, max_pending=max_pending, log=log)
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        max_pending: int = 4096,
        busy_seconds: float = 5.0,
        clock: Callable[[], float] = time.time,
        log: Log | None = None,
    ) -> Self:
        """Open the log at ``url``, bring its schema up to date, and close what a crash left open.

        ``busy_seconds`` is how long to wait for a lock of another process. Raises ConfigError, or
        AuditUnavailable for what may pass: a lock, a full disk.
        """
        path = database.locate(url)
        try:
            opened = await asyncio.to_thread(_Opened, path, busy_seconds, clock)
        except TimeoutError as error:
            raise AuditUnavailable(f"the decision log {path} cannot be opened: {error}") from error
        except (SQLAlchemyError, OSError) as error:
            raise database.trouble(error, path) from error
        return cls(opened, max_pending, log or build_log())

    @property
    def interrupted(self) -> int:
        """How many decisions, left open by a crash, were closed at opening."""
        return self._opened.interrupted

    async def append_decision(self, record: DecisionRecord) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        with _recordable("decision"):
            row = decision_row(record, self._opened.writer)
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
            row = change_row(record, self._opened.writer)
        await self._writer.write(row, may_refuse=True)

    async def append_feedback(self, record: Feedback) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        with _recordable("feedback"):
            row = feedback_row(record, self._opened.writer)
        await self._writer.write(row, may_refuse=True)

    async def aclose(self) -> None:
        """Write what is pending and close. Idempotent; a cancelled wait does not stop it."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._writer.aclose()
        await asyncio.to_thread(self._opened.close, not self._open_decisions)

    def _commit(self, rows: Sequence[Row]) -> Sequence[AuditUnavailable | None]:
        try:
            self._insert(rows)
        except IntegrityError as error:
            if len(rows) > 1:
                # One bad record must not cost its neighbours their commit.
                return [self._commit([row])[0] for row in rows]
            return [AuditUnavailable(_broken_rule(rows[0], error))]
        except (SQLAlchemyError, OSError) as error:
            message = f"the decision log cannot be written: {database.reason(error)}"
            return [AuditUnavailable(message)] * len(rows)
        for table, values in rows:
            if table is decisions:
                self._open_decisions.add(values["decision_id"])
            elif table is outcomes:
                self._open_decisions.discard(values["decision_id"])
        return [None] * len(rows)

    def _insert(self, rows: Sequence[Row]) -> None:
        if os.stat(self._opened.path).st_ino != self._opened.inode:
            raise FileNotFoundError("another file has taken the place of the database")
        with self._opened.engine.begin() as connection:
            for table in (decisions, outcomes, policy_changes, feedback):
                values = [row.values for row in rows if row.table is table]
                if values:
                    connection.execute(sa.insert(table), values)


@contextmanager
def _recordable(what: str) -> Iterator[None]:
    """Raises AuditUnavailable for a record that cannot be written down."""
    try:
        yield
    except ValueError as error:
        raise AuditUnavailable(f"the {what} cannot be recorded: {error}") from error


def _broken_rule(row: Row, error: IntegrityError) -> str:
    decision_id = row.values["decision_id"]
    if database.error_name(error) == "SQLITE_CONSTRAINT_FOREIGNKEY":
        what = "feedback" if row.table is feedback else "an outcome"
        return f"the log has no decision {decision_id} to give {what} to"
    kind = "a decision" if row.table is decisions else "an outcome"
    return f"the log has {kind} {decision_id} already: {database.reason(error)}"
