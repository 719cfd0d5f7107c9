"""Retention: drops the beginnings of chains that are too old or too many, and seals what it did.

Knows nothing of threads and tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from gateway.audit import heads
from gateway.audit.chain import Head, Link
from gateway.audit.schema import (
    LOGGED,
    Row,
    chain,
    decisions,
    metadata,
    outcomes,
    seals,
    take_turns,
    texts,
    writers,
)
from gateway.audit.seals import Erasure, Kept, Pruning, kind_of, read_seal, text_of

STEP = 1000
"""Links that are dropped in one transaction: while it lasts, no request can be recorded."""

_FILL = 0.9
_EMPTY = Pruning(cuts={}, along=(), kept=(), writer="", dropped={}, first_at=0.0, last_at=0.0)


class Limits(NamedTuple):
    """How much of the log to keep; None: all of it."""

    seconds: float | None = None
    """Records that were recorded longer ago are dropped."""
    size: int | None = None
    """Bytes of records, without indexes; the oldest beyond it are dropped."""

    @classmethod
    def of(cls, days: float | None, megabytes: float | None) -> Limits:
        """From what people count in; a megabyte has a million bytes."""
        return cls(
            None if days is None else days * 86400,
            None if megabytes is None else int(megabytes * 1_000_000),
        )

    def __bool__(self) -> bool:
        return self.seconds is not None or self.size is not None


class Prune:
    """One step: the beginning of the chain that begins with the oldest record."""

    def __init__(self, limits: Limits, writer: str, now: float) -> None:
        self._limits = limits
        self._writer = writer
        self._now = now
        self._oldest = None if limits.seconds is None else now - limits.seconds
        self.dropped = 0
        """Links that are gone; 0 when there was nothing to drop."""

    def row(self) -> Row:
        """The seal's row; to make it drops what it tells of."""
        values = {
            "writer": self._writer,
            "created_at": self._now,
            "kind": kind_of(Pruning),
        }
        return Row(seals, values, self._drop)

    def _drop(self, connection: sa.Connection) -> Mapping[str, Any] | None:
        # Two gateways must not each base a seal on the same earlier one.
        take_turns(connection)
        excess = self._excess(connection)
        for writer in heads.oldest_first(connection):
            prefix = self._prefix(connection, writer, excess)
            if prefix:
                seal = _drop_links(connection, prefix)
                self.dropped = len(prefix)
                return {"document": text_of(seal)}
        return None

    def _excess(self, connection: sa.Connection) -> int:
        """Bytes over the limit."""
        if self._limits.size is None:
            return 0
        total = int(connection.scalar(sa.select(sa.func.sum(chain.c.size))) or 0)
        there = sa.select(sa.func.sum(texts.c.stored)).where(texts.c.ciphertext.is_not(None))
        total += int(connection.scalar(there) or 0)
        if total <= self._limits.size:
            return 0
        # A little more than needed, so that not every later record costs a step of its own.
        return total - int(self._limits.size * _FILL)

    def _prefix(self, connection: sa.Connection, writer: str, excess: int) -> list[Link]:
        """The links that are to go: old, or too many, and of no request that still runs."""
        links = heads.links(connection, writer, limit=STEP)
        still_open = _open_decisions(connection, links)
        stored = _stored_texts(connection, links)
        prefix = []
        for link in links:
            is_old = self._oldest is not None and link.recorded_at < self._oldest
            # What was recorded meanwhile stays: each step leaves a record of its own.
            is_too_much = excess > 0 and link.recorded_at < self._now
            if not (is_old or is_too_much):
                break
            if link.table_name == decisions.name and link.record in still_open:
                break
            prefix.append(link)
            excess -= link.size
            if link.table_name == decisions.name:
                excess -= stored.get(link.record, 0)
        return prefix


def _stored_texts(connection: sa.Connection, links: Sequence[Link]) -> dict[str, int]:
    """How many bytes of texts go with each decision."""
    ids = [link.record for link in links if link.table_name == decisions.name]
    query = (
        sa.select(texts.c.decision_id, sa.func.sum(texts.c.stored))
        .where(texts.c.decision_id.in_(ids), texts.c.ciphertext.is_not(None))
        .group_by(texts.c.decision_id)
    )
    return {decision_id: int(size) for decision_id, size in connection.execute(query)}


def _open_decisions(connection: sa.Connection, links: Sequence[Link]) -> set[str]:
    ids = [link.record for link in links if link.table_name == decisions.name]
    query = sa.select(outcomes.c.decision_id).where(outcomes.c.decision_id.in_(ids))
    return set(ids) - set(connection.scalars(query))


def _drop_links(connection: sa.Connection, prefix: Sequence[Link]) -> Pruning:
    """Delete the links and their records; returns what is to be said of it."""
    before = heads.last_pruning(connection) or _EMPTY
    last = prefix[-1]
    gone = {(link.table_name, link.record) for link in prefix}
    kept = [
        Kept(table=link.table_name, record=link.record, digest=link.digest)
        for link in prefix
        if LOGGED[link.table_name].kept
    ]
    # The two records of a request go together: neither says anything without the other.
    requests = sorted({r for table, r in gone if table in (decisions.name, outcomes.name)})
    erased = {*before.erased, *_erased_by(connection, prefix)}
    along = (_delete_requests(connection, requests) | set(before.along)) - gone
    for name, logged in LOGGED.items():
        records = [link.record for link in prefix if link.table_name == name]
        if records and not logged.kept and logged.table not in (decisions, outcomes):
            _delete(connection, logged.table.c[logged.key], records)
    connection.execute(
        sa.delete(chain).where(chain.c.writer == last.writer, chain.c.position <= last.position)
    )
    cuts = {**before.cuts, last.writer: Head(last.position, last.mac)}
    # Whoever is alive goes on where it was, even if all that it wrote so far is gone.
    living = connection.scalars(sa.select(writers.c.writer))
    needed = {*heads.chains(connection), *heads.mentioned(connection), *living}
    return Pruning(
        cuts={writer: cut for writer, cut in cuts.items() if writer in needed},
        along=tuple(sorted(along)),
        kept=(*before.kept, *kept),
        writer=last.writer,
        dropped=dict(Counter(link.table_name for link in prefix)),
        first_at=min(link.recorded_at for link in prefix),
        last_at=max(link.recorded_at for link in prefix),
        erased=tuple(sorted(_still_there(connection, erased))),
    )


def _erased_by(connection: sa.Connection, prefix: Sequence[Link]) -> set[str]:
    """The decisions of the erasures among these links, which must not be forgotten with them."""
    numbers = [int(link.record) for link in prefix if link.table_name == seals.name]
    query = sa.select(seals).where(seals.c.seq.in_(numbers), seals.c.kind == kind_of(Erasure))
    found = (read_seal(row._asdict()) for row in connection.execute(query))
    return {id_ for seal in found if isinstance(seal, Erasure) for id_ in seal.decision_ids}


def _still_there(connection: sa.Connection, ids: set[str]) -> set[str]:
    there: set[str] = set()
    ordered = sorted(ids)
    for start in range(0, len(ordered), STEP):
        part = ordered[start : start + STEP]
        query = sa.select(texts.c.decision_id).where(texts.c.decision_id.in_(part))
        there.update(connection.scalars(query))
    return there


def _delete_requests(connection: sa.Connection, ids: Sequence[str]) -> set[tuple[str, str]]:
    """Delete decisions and all that refers to them. Returns table and key of each chained record."""
    deleted = set()
    children = [
        (table, key.parent)
        for table in metadata.sorted_tables
        for key in table.foreign_keys
        if key.column is decisions.c.decision_id
    ]
    for table, column in [*reversed(children), (decisions, decisions.c.decision_id)]:
        if table.name in LOGGED:
            name = table.c[LOGGED[table.name].key]
            found = connection.scalars(sa.select(name).where(column.in_(ids)))
            deleted |= {(str(table.name), str(record)) for record in found}
        connection.execute(sa.delete(table).where(column.in_(ids)))
    return deleted


def _delete(connection: sa.Connection, column: sa.Column[Any], records: Sequence[str]) -> None:
    values: Sequence[Any] = records
    if isinstance(column.type, sa.Integer):
        values = [int(record) for record in records]
    connection.execute(sa.delete(column.table).where(column.in_(values)))
