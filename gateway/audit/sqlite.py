"""A decision log in an SQLite file. The only module with words that SQLite alone understands."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from gateway.audit import presence
from gateway.audit.place import EXAMPLE, Entrance, wrong

_READERS = 4


def locate(url: sa.URL) -> SqliteFile:
    """The file that ``url`` names. Raises ConfigError."""
    if url.query:
        raise wrong("the URL takes no parameters", f"write it like {EXAMPLE}")
    if not url.database or url.database.startswith((":memory:", "file:")):
        raise wrong("a log in memory is not durable", f"name a file, like {EXAMPLE}")
    try:
        return SqliteFile(Path(url.database).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise wrong(f"no such place: {error}", f"write it like {EXAMPLE}") from error


class SqliteFile:
    """A `Place`. Each writer has a lock on a file beside the database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._inode: int | None = None
        self._presence: presence.Presence | None = None

    def connect(self, busy_seconds: float, *, writable: bool) -> sa.Engine:
        """See `Place`. A commit returns when its data is on the disk: write-ahead log, one fsync."""
        if not writable:
            return self._connect_reader(busy_seconds)
        engine = self._engine("rwc", busy_seconds, 1)
        sa.event.listen(engine, "connect", _make_durable)
        sa.event.listen(engine, "begin", self._begin)
        return engine

    @contextmanager
    def enter(self, engine: sa.Engine, writer: str, busy_seconds: float) -> Iterator[Entrance]:
        """See `Place`."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = presence.directory(self.path)
        with presence.gate(directory, busy_seconds):
            with engine.begin() as connection:
                yield Entrance(connection, presence.living(directory).__contains__)
            self._inode = os.stat(self.path).st_ino
            self._presence = presence.Presence(directory, writer)

    def leave(self) -> None:
        """See `Place`."""
        if self._presence is not None:
            self._presence.release()
            self._presence = None

    def _begin(self, connection: sa.Connection) -> None:
        if self._inode is not None and os.stat(self.path).st_ino != self._inode:
            raise FileNotFoundError("another file has taken the place of the database")
        # A transaction that begins as a reader cannot wait for a lock when it turns into a writer.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _connect_reader(self, busy_seconds: float) -> sa.Engine:
        if not self.path.is_file():
            raise wrong(
                f"there is no decision log at {self.path}",
                "start the gateway once, or give another URL",
            )
        engine = self._engine("ro", busy_seconds, _READERS)
        sa.event.listen(engine, "begin", _begin_to_read)
        return engine

    def _engine(self, mode: str, busy_seconds: float, size: int) -> sa.Engine:
        def connect() -> sqlite3.Connection:
            place = f"{self.path.as_uri()}?mode={mode}"
            return sqlite3.connect(place, uri=True, timeout=busy_seconds, check_same_thread=False)

        return sa.create_engine(
            "sqlite://", creator=connect, poolclass=QueuePool, pool_size=size, max_overflow=0
        )


def _make_durable(connection: sqlite3.Connection, _record: Any) -> None:
    (journal,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if journal != "wal":
        raise sqlite3.OperationalError(
            f"no write-ahead log is possible here (journal mode {journal}): use a local disk"
        )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    # What is deleted is overwritten, not only forgotten.
    connection.execute("PRAGMA secure_delete=ON")


def _begin_to_read(connection: sa.Connection) -> None:
    # Without it, each statement would see the log as it is by then.
    connection.exec_driver_sql("BEGIN")


def scrub(engine: sa.Engine) -> bool:
    """Take what was overwritten out of the write-ahead log too; False while a reader needs it."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((busy, *_),) = cursor.fetchall()
        return not busy
    finally:
        connection.close()
