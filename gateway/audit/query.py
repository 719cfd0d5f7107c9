"""Reads the decision log, for the command line and the API. Never creates or changes one."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Annotated, Self, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from gateway.audit import attached, database, document
from gateway.audit.attached import readable
from gateway.audit.conditions import conditions
from gateway.audit.facets import key
from gateway.audit.filters import Filters
from gateway.audit.keys import Keyring
from gateway.audit.links import RecordLink, links_of
from gateway.audit.record import (
    Access,
    DecisionRecord,
    Feedback,
    OutcomeRecord,
    PolicyChange,
    Shadow,
    TextFacts,
)
from gateway.audit.schema import decisions, facets, outcomes, policy_changes, texts
from gateway.audit.statistics import DEFAULT_BY, Statistics, compute, dimensions
from gateway.audit.texts import Captured
from gateway.errors import AuditUnavailable, InvalidRequest

MAX_LIMIT = 1000

_T = TypeVar("_T")
_Position = tuple[float, Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]
"""Creation time and sequence number of the last entry of a page."""
_position_decoder = msgspec.json.Decoder(_Position)
_Query = sa.Select[int, str, str, str]
_Found = sa.Row[int, str, str, str]


class Entry(msgspec.Struct, frozen=True):
    """A decision and its outcome; None while the request runs, or when a crash left it open."""

    decision: DecisionRecord
    outcome: OutcomeRecord | None
    feedback: tuple[Feedback, ...] = ()
    """In the order in which it was given: the last one counts."""
    texts: tuple[TextFacts, ...] = ()
    """What was captured of it, without the texts themselves."""
    erased: bool = False
    """Whether a text was captured and is gone."""
    shadow: Shadow | None = None
    """What came of its shadow run; None where it had none."""
    accesses: tuple[Access, ...] = ()
    """Who was shown its text, in order."""


class Page(msgspec.Struct, frozen=True):
    """Some entries, newest first, and the cursor of the next page; None when this is the last."""

    entries: tuple[Entry, ...]
    next_cursor: str | None


class DecisionReader:
    """The read side of the log; works beside a running gateway. Made by `open`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @classmethod
    async def open(cls, url: str, *, busy_seconds: float = 5.0) -> Self:
        """Raises ConfigError when no decision log of this version is at ``url``."""
        path = database.locate(url)
        return cls(await asyncio.to_thread(database.connect_reader, path, busy_seconds))

    async def get(self, decision_id: str) -> Entry | None:
        """The entry with this id."""
        query = _SELECT.where(decisions.c.decision_id == key(decision_id))
        entries = await self._read(lambda c: _fetch(c, query))
        return entries[0] if entries else None

    async def captures(self, decision_id: str) -> tuple[Captured, ...]:
        """The captured texts of a request, locked; without a ciphertext where there is none now."""
        query = (
            sa.select(texts.c.document, texts.c.ciphertext)
            .where(texts.c.decision_id == key(decision_id))
            .order_by(texts.c.seq)
        )
        rows = await self._read(lambda c: c.execute(query).all())
        with readable(f"the texts of {decision_id}"):
            return tuple(Captured(document.decode_text(row[0]), row[1]) for row in rows)

    async def links(self, decision_id: str, keys: Keyring) -> tuple[RecordLink, ...]:
        """Where the records of a request stand in their chains."""
        return await self._read(lambda c: links_of(c, key(decision_id), keys))

    async def find(self, prefix: str, *, limit: int = 2) -> tuple[Entry, ...]:
        """Up to ``limit`` entries whose id begins with ``prefix``, in the order of their ids."""
        query = (
            _SELECT.where(
                decisions.c.decision_id >= key(prefix),
                decisions.c.decision_id < key(prefix) + "\U0010ffff",
            )
            .order_by(decisions.c.decision_id)
            .limit(limit)
        )
        return await self._read(lambda c: _fetch(c, query))

    async def list(
        self, filters: Filters | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page:
        """One page, newest first. Raises InvalidRequest for a wrong limit, time or cursor.

        Following the cursors meets every entry there was at the first page exactly once.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidRequest(f"limit must be from 1 to {MAX_LIMIT}", param="limit")
        found = sa.select(facets.c.seq, facets.c.created_at, facets.c.decision_id).where(
            *conditions(filters or Filters())
        )
        if cursor is not None:
            found = found.where(_after(_decode(cursor)))
        # One row more than asked for tells whether there is a next page.
        found = found.order_by(facets.c.created_at.desc(), facets.c.seq.desc()).limit(limit + 1)

        def read(connection: sa.Connection) -> Page:
            rows = connection.execute(found).all()
            shown = [row.decision_id for row in rows[:limit]]
            entries = _fetch(connection, _SELECT.where(decisions.c.decision_id.in_(shown)))
            by_id = {entry.decision.decision_id: entry for entry in entries}
            last = rows[limit - 1] if len(rows) > limit else None
            return Page(
                # One that retention took away meanwhile is left out.
                entries=tuple(by_id[shown_id] for shown_id in shown if shown_id in by_id),
                next_cursor=last and _encode((last.created_at, last.seq)),
            )

        return await self._read(read)

    async def stats(
        self,
        filters: Filters | None = None,
        *,
        by: Sequence[str] = DEFAULT_BY,
        quantiles: bool = True,
    ) -> Statistics:
        """Counts, tokens and durations by the dimensions ``by``. Raises InvalidRequest."""
        names = dimensions(by)
        wanted = filters or Filters()
        return await self._read(lambda c: compute(c, wanted, names, quantiles=quantiles))

    async def changes(self, *, limit: int = 100) -> tuple[PolicyChange, ...]:
        """The last policy changes, newest first."""
        rows = await self._read(lambda c: c.execute(_SELECT_CHANGES.limit(limit)).all())
        return tuple(_change(row.seq, row.document) for row in rows)

    async def version(self, policy_hash: str) -> PolicyChange | None:
        """The last change that brought the policy with this hash into force."""
        query = _SELECT_CHANGES.where(policy_changes.c.policy_hash == policy_hash).limit(1)
        row = await self._read(lambda c: c.execute(query).first())
        return None if row is None else _change(row.seq, row.document)

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await asyncio.to_thread(self._engine.dispose)

    async def _read(self, query: Callable[[sa.Connection], _T]) -> _T:
        def run() -> _T:
            with self._engine.connect() as connection:
                return query(connection)

        try:
            return await asyncio.to_thread(run)
        except SQLAlchemyError as error:
            message = f"the decision log cannot be read: {database.reason(error)}"
            raise AuditUnavailable(message) from error


_SELECT = sa.select(
    decisions.c.seq,
    decisions.c.decision_id,
    decisions.c.document.label("decision"),
    outcomes.c.document.label("outcome"),
).select_from(decisions.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.decision_id))


_SELECT_CHANGES = sa.select(policy_changes.c.seq, policy_changes.c.document).order_by(
    policy_changes.c.seq.desc()
)


def _fetch(connection: sa.Connection, query: _Query) -> tuple[Entry, ...]:
    return _entries(connection, connection.execute(query).all())


def _entries(connection: sa.Connection, rows: Sequence[_Found]) -> tuple[Entry, ...]:
    ids = [row.decision_id for row in rows]
    given = attached.feedback_of(connection, ids)
    captured = attached.texts_of(connection, ids)
    added = attached.addenda_of(connection, ids)
    return tuple(
        _entry(row, given[row.decision_id], captured[row.decision_id], added[row.decision_id])
        for row in rows
    )


def _entry(
    row: _Found,
    given: Sequence[Feedback],
    captured: Sequence[attached.Captured],
    added: Sequence[Access | Shadow],
) -> Entry:
    with readable(f"entry {row.seq}"):
        return Entry(
            decision=document.decode_decision(row.decision),
            outcome=None if row.outcome is None else document.decode_outcome(row.outcome),
            feedback=tuple(given),
            texts=tuple(facts for facts, _ in captured),
            erased=any(not there and not facts.text_dropped for facts, there in captured),
            shadow=next((record for record in added if isinstance(record, Shadow)), None),
            accesses=tuple(record for record in added if isinstance(record, Access)),
        )


def _change(seq: int, text: str) -> PolicyChange:
    with readable(f"policy change {seq}"):
        return document.decode_change(text)


def _after(position: _Position) -> sa.ColumnElement[bool]:
    # As one comparison of pairs an index can begin there.
    return sa.tuple_(facets.c.created_at, facets.c.seq) < sa.tuple_(*position)


def _encode(position: _Position) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode("ascii").rstrip("=")


def _decode(cursor: str) -> _Position:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return _position_decoder.decode(base64.urlsafe_b64decode(padded))
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidRequest(
            "cursor is not one that this log gave: use next_cursor of the page before, unchanged",
            param="cursor",
        ) from error
