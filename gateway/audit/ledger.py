"""`Ledger`: rows and the links that chain them, into the database in one transaction.

Belongs to one thread. Knows nothing of records, nor of who waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from gateway.audit import heads
from gateway.audit.anchor import Anchor, Anchored
from gateway.audit.chain import Chain, Head, Link
from gateway.audit.indexing import index
from gateway.audit.keys import Key, Keyring
from gateway.audit.place import reason
from gateway.audit.schema import LOGGED, Row, chain, seals
from gateway.audit.seals import Checkpoint, Closing, Opening, handover, kind_of, seal_row, text_of
from gateway.log import Log

_ADOPTED = 1000
"""Rows that are adopted at a time."""


class Pace(NamedTuple):
    """How often a checkpoint is due, if anything was recorded since the last seal."""

    rows: int = 1000
    """After so many records, at the latest …"""
    seconds: float = 60.0
    """… or after so long."""


class Ledger:
    """One writer's way into the log."""

    def __init__(
        self,
        writer: str,
        keys: Keyring,
        *,
        log: Log,
        anchor: Anchor | None = None,
        checkpoint_rows: int = Pace().rows,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.writer = writer
        self._keys = keys
        self._anchor = anchor
        self._checkpoint_rows = checkpoint_rows
        self._clock = clock
        self._log = log
        self._chain = Chain(writer)
        self._in_doubt: Head | None = None
        """Where the chain is if a commit that failed was one all the same."""
        self._unsealed = 0
        """Links since the last seal."""
        self._to_anchor: list[Anchored] = []

    def open(self, connection: sa.Connection) -> None:
        """Say where the other chains ended, and adopt what is older than chains.

        The caller holds the transaction, and calls `publish` after its commit.
        """
        ends, before = heads.unspoken(connection), self._last_key(connection)
        is_first = next(heads.chains(connection), None) is None
        if before is not None and before.id != self._keys.signing.id:
            row = seal_row(handover(self._keys.signing), self.writer, self._clock())
            self._write(connection, [row], before)
        old = _unchained(connection) if is_first else {}
        opening = Opening(heads=ends, adopted=old)
        self.append(connection, [seal_row(opening, self.writer, self._clock())])
        for name in old:
            self._adopt(connection, name)

    def append(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """Insert and chain rows in the caller's transaction."""
        self._write(connection, rows, self._keys.signing)

    def commit(self, engine: sa.Engine, rows: Sequence[Row]) -> None:
        """Make rows durable, all or none. Raises SQLAlchemyError or OSError."""
        before, unsealed = self._chain.head, self._unsealed
        try:
            with engine.begin() as connection:
                before = self._settle_doubt(connection)
                self.append(connection, rows)
                if self._unsealed >= self._checkpoint_rows:
                    self.append(connection, [self.checkpoint()])
        except BaseException:
            if self._chain.head != before:
                # The database may have done what it could not say that it did.
                self._in_doubt, self._chain.head = self._chain.head, before
            self._unsealed = unsealed
            self._to_anchor.clear()
            raise
        self.publish()

    def checkpoint(self) -> Row:
        """A row that says where the chain is when it is inserted; none where a seal just said so."""
        return self._seal(Checkpoint)

    def closing(self) -> Row:
        """A row that says where the chain ends."""
        return self._seal(Closing)

    def publish(self) -> None:
        """Anchor the seals that were committed."""
        lines, self._to_anchor = self._to_anchor, []
        if self._anchor is None or not lines:
            return
        try:
            self._anchor.append(lines)
        except OSError as error:
            # The next seal says as much of the chain as these would have.
            self._log.error("anchor_not_written", error=reason(error))

    def _seal(self, kind: type[Checkpoint] | type[Closing]) -> Row:
        def say(_: sa.Connection) -> Mapping[str, Any] | None:
            if kind is Checkpoint and not self._unsealed:
                return None
            head = self._chain.head
            return {"document": text_of(kind(position=head.position, head=head.mac))}

        values = {"writer": self.writer, "created_at": self._clock(), "kind": kind_of(kind)}
        return Row(seals, values, say)

    def _write(self, connection: sa.Connection, rows: Sequence[Row], key: Key) -> None:
        for logged in LOGGED.values():
            values = [row.values for row in rows if row.table is logged.table]
            if values and not logged.is_numbered:
                connection.execute(sa.insert(logged.table), values)
        index(connection, rows)
        links, at = [], self._clock()
        for row in rows:
            inserted = _inserted(connection, row)
            if inserted is not None:
                links.append(self._link(row.table, *inserted, key, at))
        if links:
            connection.execute(sa.insert(chain), [msgspec.structs.asdict(link) for link in links])

    def _link(
        self, table: sa.Table, record: str, values: Mapping[str, Any], key: Key, at: float
    ) -> Link:
        previous = self._chain.head.mac
        link = self._chain.link(table, record, values, key, at)
        if table is seals:
            self._unsealed = 0
            self._to_anchor.append(Anchored(previous=previous, link=link, row=values))
        else:
            self._unsealed += 1
        return link

    def _settle_doubt(self, connection: sa.Connection) -> Head:
        """Where the chain is after a commit that failed; anything but the two places where it can
        be is somebody else's doing, and has to show as a gap."""
        if self._in_doubt is not None:
            if heads.head(connection, self.writer) == self._in_doubt:
                self._chain.head = self._in_doubt
            self._in_doubt = None
        return self._chain.head

    def _last_key(self, connection: sa.Connection) -> Key | None:
        """The key that signed last, if it is one of ours."""
        query = sa.select(seals.c.writer).order_by(seals.c.seq.desc()).limit(1)
        newest = (
            sa.select(chain.c.key_id)
            .where(chain.c.writer == query.scalar_subquery())
            .order_by(chain.c.position.desc())
            .limit(1)
        )
        key_id = connection.scalar(newest)
        return self._keys.get(key_id) if key_id else None

    def _adopt(self, connection: sa.Connection, name: str) -> None:
        logged = LOGGED[name]
        table, key = logged.table, logged.table.c[logged.key]
        order = key if table.autoincrement_column is None else table.autoincrement_column
        query, at = sa.select(table).order_by(order).limit(_ADOPTED), self._clock()
        page = [row._asdict() for row in connection.execute(query)]
        while page:
            links = [
                self._link(table, str(row[key.name]), row, self._keys.signing, at) for row in page
            ]
            connection.execute(sa.insert(chain), [msgspec.structs.asdict(link) for link in links])
            rest = query.where(order > page[-1][order.name])
            page = [row._asdict() for row in connection.execute(rest)]


def _inserted(connection: sa.Connection, row: Row) -> tuple[str, Mapping[str, Any]] | None:
    """The key and the values of a row, in the database by now; None where there is to be none."""
    logged = LOGGED[row.table.name]
    if not logged.is_numbered:
        return row.values[logged.key], row.values
    made = {} if row.make is None else row.make(connection)
    if made is None:
        return None
    values = {**row.values, **made}
    number = connection.scalar(
        sa.insert(row.table).values(**values).returning(row.table.c[logged.key])
    )
    return str(number), values


def _unchained(connection: sa.Connection) -> dict[str, int]:
    """How many rows there are by table, in a log that has no chain yet."""
    tables = [logged.table for logged in LOGGED.values() if logged.table is not seals]
    counts = {
        str(table.name): connection.scalar(sa.select(sa.func.count()).select_from(table))
        for table in tables
    }
    return {name: count for name, count in counts.items() if count}
