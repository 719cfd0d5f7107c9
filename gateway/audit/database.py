"""The database of the decision log: its URL, its durability settings, its migrations.

The only module with words that one particular database understands. Knows nothing of records.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from gateway.audit.schema import REVISION
from gateway.errors import AuditUnavailable, ConfigError, Problem

EXAMPLE = "sqlite:////var/lib/draftgate/decisions.db"


def locate(url: str) -> Path:
    """The absolute path of the database file that ``url`` names. Raises ConfigError."""
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError) as error:
        raise _wrong("this is not a database URL", f"write it like {EXAMPLE}") from error
    # A driver named here is not needed; one that would encrypt must not be left out without a word.
    known = parsed.drivername in {"sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"}
    if not known or parsed.host:
        shown = parsed.render_as_string(hide_password=True)
        raise _wrong(f"cannot keep the decision log in {shown!r}", f"write it like {EXAMPLE}")
    if parsed.query:
        raise _wrong("the URL takes no parameters", f"write it like {EXAMPLE}")
    if not parsed.database or parsed.database.startswith((":memory:", "file:")):
        raise _wrong("a log in memory is not durable", f"name a file, like {EXAMPLE}")
    try:
        return Path(parsed.database).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise _wrong(f"no such place: {error}", f"write it like {EXAMPLE}") from error


def connect_writer(path: Path, busy_seconds: float) -> sa.Engine:
    """An engine with one durable connection, made on first use.

    A commit returns when its data is on the disk: write-ahead log, one fsync a commit.
    """
    engine = _engine(path, "rwc", busy_seconds)

    @sa.event.listens_for(engine, "connect")
    def _make_durable(connection: sqlite3.Connection, _record: Any) -> None:
        (journal,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if journal != "wal":
            raise sqlite3.OperationalError(
                f"no write-ahead log is possible here (journal mode {journal}): use a local disk"
            )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A transaction that begins as a reader cannot wait for a lock when it turns into a writer.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def connect_reader(path: Path, busy_seconds: float) -> sa.Engine:
    """An engine that can read beside a running gateway, and cannot create or change anything.

    Raises ConfigError when there is no decision log of this version at ``path``.
    """
    if not path.is_file():
        raise _wrong(
            f"there is no decision log at {path}", "start the gateway once, or give another URL"
        )
    engine = _engine(path, "ro", busy_seconds)
    try:
        with engine.connect() as connection:
            found = _revision(connection)
    except SQLAlchemyError as error:
        engine.dispose()
        raise trouble(error, path) from error
    if found != REVISION:
        engine.dispose()
        raise _wrong(
            f"{path} is not a decision log of this version ({found or 'none'}, not {REVISION})",
            "start the gateway once: it brings an older log up to date",
        )
    return engine


def migrate(connection: sa.Connection, path: Path) -> None:
    """Bring the schema up to date; nothing is done when it is. The caller holds the transaction.

    Raises ConfigError when a newer version wrote the database.
    """
    if _revision(connection) == REVISION:
        return
    # Importing alembic takes longer than all the rest of opening the log.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", "gateway.audit:migrations")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise _wrong(
            f"a newer version wrote the decision log {path}: {error}",
            "use that version, or give another URL",
        ) from error


def trouble(error: Exception, path: Path) -> AuditUnavailable | ConfigError:
    """What to tell of ``error``, met while opening ``path``.

    A lock or a full disk may pass, so it is AuditUnavailable; the rest is ConfigError.
    """
    name = error_name(error)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL")):
        return AuditUnavailable(f"the decision log {path} cannot be opened: {reason(error)}")
    return _wrong(
        f"cannot open the decision log {path}: {reason(error)}",
        "audit.url must name a file in a directory that the gateway may write",
    )


def reason(error: Exception) -> str:
    """The error's own words, without statement, values and file names: clients may see it."""
    if isinstance(error, DBAPIError):
        return str(error.orig)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def error_name(error: Exception) -> str:
    """The database's name of the error, such as ``SQLITE_FULL``; empty when it has none."""
    return str(getattr(getattr(error, "orig", None), "sqlite_errorname", ""))


def _engine(path: Path, mode: str, busy_seconds: float) -> sa.Engine:
    def connect() -> sqlite3.Connection:
        place = f"{path.as_uri()}?mode={mode}"
        return sqlite3.connect(place, uri=True, timeout=busy_seconds, check_same_thread=False)

    size = 1 if mode == "rwc" else 4
    return sa.create_engine(
        "sqlite://", creator=connect, poolclass=QueuePool, pool_size=size, max_overflow=0
    )


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return found


def _wrong(message: str, hint: str) -> ConfigError:
    return ConfigError([Problem(message, path="audit.url", hint=hint)])
