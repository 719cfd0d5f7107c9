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
from gateway.audit.record import DecisionRecord, EvidenceEvent, OutcomeRecord, Shadow
from gateway.audit.schema import (
    addenda,
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
_Link = sa.Row[int, str, str]
_Documents = tuple[str, str, str | None]
"""Decision, outcome and shadow run, the last None where an outcome is told of."""
_REQUESTS = decisions.join(outcomes, outcomes.c.decision_id == decisions.c.decision_id)
_DOCUMENTS = (decisions.c.document.label("decision"), outcomes.c.document.label("outcome"))
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
        """What is over next, requests and shadow runs, ``limit`` of each writer after its position."""

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
            sa.select(chain.c.position, chain.c.table_name, chain.c.record)
            .where(chain.c.writer == writer, chain.c.position > after)
            .where(chain.c.table_name.in_([outcomes.name, addenda.name]))
            .order_by(chain.c.position)
            .limit(limit)
        )
        links = connection.execute(query).all()
        found = {
            outcomes.name: _outcomes(connection, links),
            addenda.name: _shadows(connection, links),
        }
        for link in links:
            row = found[link.table_name].get(link.record)
            try:
                yield Settled(writer, link.position, *_read_row(row))
            except msgspec.DecodeError as error:
                # `draftgate decisions verify` names it; the others bear witness all the same.
                self._log.error("outcome_damaged", writer=writer, error=str(error))
                yield Settled(writer, link.position, None)

    def _events(self, query: sa.Select[str]) -> tuple[EvidenceEvent, ...]:
        texts: Sequence[str] = self._read(lambda c: c.scalars(query).all())
        found = []
        for text in texts:
            try:
                found.append(document.decode_event(text))
            except msgspec.DecodeError as error:
                # `draftgate decisions verify` names it; the other cells must not wait for that.
                self._log.error("evidence_event_damaged", error=str(error))
        return tuple(found)

    def _read(self, query: Callable[[sa.Connection], _T]) -> _T:
        with _reported("read"), self._engine.connect() as connection:
            return query(connection)


def _outcomes(connection: sa.Connection, links: Sequence[_Link]) -> Mapping[str, _Documents]:
    """The records of the requests whose outcomes are linked."""
    ids = [link.record for link in links if link.table_name == outcomes.name]
    query = sa.select(outcomes.c.decision_id, *_DOCUMENTS, sa.null()).select_from(_REQUESTS)
    rows = connection.execute(query.where(outcomes.c.decision_id.in_(ids)))
    return {row[0]: tuple(row[1:]) for row in rows}


def _shadows(connection: sa.Connection, links: Sequence[_Link]) -> Mapping[str, _Documents]:
    """The records of the requests whose shadow runs are linked; other addenda are left out."""
    numbers = [int(link.record) for link in links if link.table_name == addenda.name]
    source = _REQUESTS.join(addenda, addenda.c.decision_id == outcomes.c.decision_id)
    query = sa.select(addenda.c.seq, *_DOCUMENTS, addenda.c.document).select_from(source)
    rows = connection.execute(query.where(addenda.c.kind == "shadow", addenda.c.seq.in_(numbers)))
    return {str(row[0]): tuple(row[1:]) for row in rows}


def _read_row(
    row: _Documents | None,
) -> tuple[tuple[DecisionRecord, OutcomeRecord] | None, Shadow | None]:
    if row is None:
        return None, None
    decision, outcome, shadow = row
    records = document.decode_decision(decision), document.decode_outcome(outcome)
    return records, None if shadow is None else document.decode_shadow(shadow)


@contextmanager
def _reported(done: str) -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        message = f"the decision log cannot be {done}: {database.reason(error)}"
        raise AuditUnavailable(message) from error
