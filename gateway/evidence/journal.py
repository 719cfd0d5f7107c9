"""`Journal`: what evidence reads of the decision log, and the snapshot that it keeps there.

Synchronous. Raises AuditUnavailable where the database cannot be read or written now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from gateway.audit import database, document, heads
from gateway.audit.record import EvidenceEvent
from gateway.audit.schema import (
    chain,
    decisions,
    evidence_events,
    evidence_snapshots,
    outcomes,
    writers,
)
from gateway.errors import AuditUnavailable
from gateway.evidence.board import Settled, Snapshot
from gateway.log import Log, build_log

_T = TypeVar("_T")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Snapshot)


class Journal:
    """The evidence in one database."""

    def __init__(self, url: str, *, busy_seconds: float = 5.0, log: Log | None = None) -> None:
        """Raises ConfigError when no decision log of this version is at ``url``."""
        self._place, self._busy_seconds = database.locate(url), busy_seconds
        self._engine = database.connect_reader(self._place, busy_seconds)
        self._writer: sa.Engine | None = None
        self._log = log or build_log()

    def snapshot(self) -> Snapshot | None:
        """The last one that was saved; None where there is none, or none of this version."""
        text = self._read(lambda c: c.scalar(sa.select(evidence_snapshots.c.document)))
        if text is None:
            return None
        try:
            return _decoder.decode(text)
        except msgspec.DecodeError as error:
            # It follows from the log, which is read again from its beginning.
            self._log.error("evidence_snapshot_damaged", error=str(error))
            return None

    def save(self, snapshot: Snapshot, at: float) -> None:
        """Replace the snapshot; gateways that share a log replace each other's, all of them true."""
        values = {"number": 1, "saved_at": at, "document": _encoder.encode(snapshot).decode()}
        if self._writer is None:
            self._writer = self._place.connect(self._busy_seconds, writable=True)
        with _reported("written"), self._writer.begin() as connection:
            update = sa.update(evidence_snapshots).values(**values)
            if not connection.execute(update.where(evidence_snapshots.c.number == 1)).rowcount:
                connection.execute(sa.insert(evidence_snapshots).values(**values))

    def events(self) -> tuple[EvidenceEvent, ...]:
        """The last event of each cell: what is in force."""
        newest = sa.select(sa.func.max(evidence_events.c.seq)).group_by(evidence_events.c.cell)
        query = sa.select(evidence_events.c.document).where(evidence_events.c.seq.in_(newest))
        return self._events(query.order_by(evidence_events.c.seq))

    def history(self, cell: str | None = None, *, limit: int = 100) -> tuple[EvidenceEvent, ...]:
        """The last events, newest first, of all cells or of the one with this id."""
        query = sa.select(evidence_events.c.document).order_by(evidence_events.c.seq.desc())
        if cell is not None:
            query = query.where(evidence_events.c.cell == cell)
        return self._events(query.limit(limit))

    def writers(self) -> frozenset[str]:
        """Every writer with records in the log."""
        return self._read(lambda c: frozenset(heads.chains(c)))

    def living(self) -> frozenset[str]:
        """The writers that have not left: only they may add to their chains."""
        return self._read(lambda c: frozenset(c.scalars(sa.select(writers.c.writer))))

    def settled(
        self, following: Iterable[str], positions: Mapping[str, int], *, limit: int
    ) -> tuple[Settled, ...]:
        """The next requests that are over, up to ``limit`` of each writer after its position."""

        def read(connection: sa.Connection) -> tuple[Settled, ...]:
            found = (
                self._settled(connection, writer, positions.get(writer, 0), limit)
                for writer in sorted(following)
            )
            return tuple(each for page in found for each in page)

        return self._read(read)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._engine.dispose()
        if self._writer is not None:
            self._writer.dispose()

    def _settled(
        self, connection: sa.Connection, writer: str, after: int, limit: int
    ) -> Iterator[Settled]:
        query = (
            sa.select(
                chain.c.position,
                decisions.c.document.label("decision"),
                outcomes.c.document.label("outcome"),
            )
            .select_from(chain)
            .join(outcomes, outcomes.c.decision_id == chain.c.record)
            .join(decisions, decisions.c.decision_id == chain.c.record)
            .where(chain.c.writer == writer, chain.c.position > after)
            .where(chain.c.table_name == "outcomes")
            .order_by(chain.c.position)
            .limit(limit)
        )
        for row in connection.execute(query):
            records = None
            try:
                decision = document.decode_decision(row.decision)
                records = (decision, document.decode_outcome(row.outcome))
            except msgspec.DecodeError as error:
                # `draftgate decisions verify` names it; the others bear witness all the same.
                self._log.error("outcome_damaged", writer=writer, error=str(error))
            yield Settled(writer, row.position, records)

    def _events(self, query: sa.Select[str]) -> tuple[EvidenceEvent, ...]:
        texts: Sequence[str] = self._read(lambda c: c.scalars(query).all())
        try:
            return tuple(document.decode_event(text) for text in texts)
        except msgspec.DecodeError as error:
            raise AuditUnavailable(f"an evidence event of the log is damaged: {error}") from error

    def _read(self, query: Callable[[sa.Connection], _T]) -> _T:
        with _reported("read"), self._engine.connect() as connection:
            return query(connection)


@contextmanager
def _reported(done: str) -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        message = f"the decision log cannot be {done}: {database.reason(error)}"
        raise AuditUnavailable(message) from error
