"""What is to be verified: links with their rows, and rows without links; from a database here.

Believes what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from gateway.audit import database, heads
from gateway.audit.chain import Link
from gateway.audit.schema import LOGGED, chain, seals

PAGE = 500
"""Links that are in memory at a time."""

Values = Mapping[str, Any]
_NUMBER = re.compile(r"[0-9]{1,18}")


class Held(NamedTuple):
    """A link and the row that it is about; None where there is no such row."""

    link: Link
    row: Values | None


class Stray(NamedTuple):
    """A row that no link is about."""

    table_name: str
    record: str
    row: Values


class Holdings(Protocol):
    """A log, whatever holds it. Each method reads it anew from its beginning."""

    def seals(self) -> Iterator[Values]:
        """The rows of all seals, each with the ``key_id`` of its writer's chain."""
        ...

    def links(self) -> Iterator[Held]:
        """All links: writer by writer, in the order in which they are held."""
        ...

    def strays(self) -> Iterator[Stray]:
        """All rows without a link."""
        ...


class DatabaseHoldings:
    """`Holdings` in a database, as it is at the beginning of the connection's transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def count(self) -> int:
        """How many links there are."""
        return self._connection.scalar(sa.select(sa.func.count()).select_from(chain)) or 0

    def seals(self) -> Iterator[Values]:
        """See `Holdings`."""
        keys: dict[str, str] = {}
        last = 0
        while True:
            query = sa.select(seals).where(seals.c.seq > last).order_by(seals.c.seq).limit(PAGE)
            page = self._connection.execute(query).all()
            if not page:
                return
            for row in page:
                if row.writer not in keys:
                    keys[row.writer] = self._key_of(row.writer)
                yield {**row._asdict(), "key_id": keys[row.writer]}
            last = page[-1].seq

    def links(self) -> Iterator[Held]:
        """See `Holdings`."""
        for writer in heads.oldest_first(self._connection):
            after = 0
            while page := heads.links(self._connection, writer, after=after, limit=PAGE):
                rows = {
                    name: self._rows(
                        name, [link.record for link in page if link.table_name == name]
                    )
                    for name in {link.table_name for link in page} & set(LOGGED)
                }
                for link in page:
                    yield Held(link, rows.get(link.table_name, {}).get(link.record))
                after = page[-1].position

    def strays(self) -> Iterator[Stray]:
        """See `Holdings`."""
        for name, logged in LOGGED.items():
            key = logged.table.c[logged.key]
            # Not a text in the database where it is a number; links hold it as one.
            text = sa.cast(key, sa.String(64)) if logged.is_numbered else key
            linked = sa.select(chain.c.record).where(chain.c.table_name == name)
            # Of all ways to ask for it the one that no database answers row by row.
            unlinked = self._connection.scalars(sa.select(text).except_(linked)).all()
            for start in range(0, len(unlinked), PAGE):
                for record, row in self._rows(name, unlinked[start : start + PAGE]).items():
                    yield Stray(name, record, row)

    def _key_of(self, writer: str) -> str:
        found = heads.links(self._connection, writer, limit=1)
        return found[0].key_id if found else ""

    def _rows(self, name: str, records: Sequence[str]) -> dict[str, Values]:
        """The rows with these keys, in the order of their keys."""
        logged = LOGGED[name]
        keys: Sequence[Any] = records
        if logged.is_numbered:
            keys = [int(record) for record in records if _NUMBER.fullmatch(record)]
        key = logged.table.c[logged.key]
        query = sa.select(logged.table).where(key.in_(keys)).order_by(key)
        found = (row._asdict() for row in self._connection.execute(query))
        return {str(values[key.name]): values for values in found}


@contextmanager
def open_holdings(url: str, *, busy_seconds: float = 5.0) -> Iterator[DatabaseHoldings]:
    """The log at ``url``, as it is now. Raises ConfigError when no log of this version is there."""
    engine = database.connect_reader(database.locate(url), busy_seconds)
    try:
        with engine.connect() as connection:
            yield DatabaseHoldings(connection)
    finally:
        engine.dispose()
