"""A decision log in PostgreSQL. The only module with words that PostgreSQL alone understands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa

from gateway.audit.place import EXAMPLE_SERVER, Entrance, wrong

_GATE = 0x64726674
"""Of the advisory lock that lets one writer at a time in; writers have one each, beside it."""
_PRESENCE = 0x64726675
_READERS = 4
_CONNECT_SECONDS = 10
_SILENCE_MILLISECONDS = 10_000
"""After so long without an answer of the network, a connection counts as lost."""


def locate(url: sa.URL) -> PostgresqlDatabase:
    """The database that ``url`` names. Raises ConfigError."""
    if not url.database:
        raise wrong("the URL names no database", f"write it like {EXAMPLE_SERVER}")
    return PostgresqlDatabase(url.set(drivername="postgresql+psycopg"))


class PostgresqlDatabase:
    """A `Place`. Each writer has an advisory lock for as long as its connection lasts."""

    def __init__(self, url: sa.URL) -> None:
        self._url = url
        self.name = url.set(drivername="postgresql", query={}).render_as_string()
        self._writer: str | None = None

    def connect(self, busy_seconds: float, *, writable: bool) -> sa.Engine:
        """See `Place`. A commit returns when the server says that it is durable."""
        settings = {
            "lock_timeout": f"{math.ceil(busy_seconds * 1000)}ms",
            "synchronous_commit": "on",
            "default_transaction_read_only": "off" if writable else "on",
        }
        engine = sa.create_engine(
            self._url,
            connect_args={
                "connect_timeout": _CONNECT_SECONDS,
                "tcp_user_timeout": _SILENCE_MILLISECONDS,
                "application_name": "draftgate",
                "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
            },
            isolation_level="READ COMMITTED" if writable else "REPEATABLE READ",
            pool_size=1 if writable else _READERS,
            max_overflow=0,
            # A server that was away is noticed before a record is given to it.
            pool_pre_ping=True,
        )
        if writable:
            sa.event.listen(engine, "connect", self._be_present)
        return engine

    @contextmanager
    def enter(self, engine: sa.Engine, writer: str, busy_seconds: float) -> Iterator[Entrance]:
        """See `Place`."""
        self._writer = writer
        with engine.begin() as connection:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_GATE)))
            present = frozenset(connection.scalars(_PRESENT, {"kind": _PRESENCE}))
            yield Entrance(connection, lambda other: _number(other) in present)

    def leave(self) -> None:
        """See `Place`: its connection is closed, and with it the lock is gone."""
        self._writer = None

    def _be_present(self, connection: psycopg.Connection[Any], _record: Any) -> None:
        # Anew on every connection: a lock does not outlive the one that it was taken on.
        if self._writer is not None:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_advisory_lock(%s, %s)", (_PRESENCE, _number(self._writer))
                )
            connection.commit()


def renumber(connection: sa.Connection, tables: Iterable[sa.Table]) -> None:
    """Let the sequences go on from the highest number in their columns."""
    for table in tables:
        column = table.autoincrement_column
        highest = None if column is None else connection.scalar(sa.select(sa.func.max(column)))
        if column is not None and highest is not None:
            sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
            connection.execute(sa.select(sa.func.setval(sequence, highest)))


_PRESENT = sa.text(
    "SELECT objid FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database "
    "WHERE locktype = 'advisory' AND granted AND classid = :kind AND objsubid = 2 "
    "AND datname = current_database()"
)


def _number(writer: str) -> int:
    """What stands for a writer in a lock: 31 bits of its id, which is random."""
    return int(writer[:8], 16) >> 1
