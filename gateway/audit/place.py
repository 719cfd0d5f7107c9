"""Where a decision log can be: the seam to the databases, and what to tell of their errors.

Knows nothing of records.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gateway.errors import AuditUnavailable, ConfigError, Problem

EXAMPLE = "sqlite:////var/lib/draftgate/decisions.db"
EXAMPLE_SERVER = "postgresql://user:password@host:5432/draftgate"

_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "08", "53", "55", "57")
"""Beginnings of error names: a lock, no room, no connection, a server that goes or comes."""


class Entrance(NamedTuple):
    """The transaction in which a writer comes in, and who is in already."""

    connection: sa.Connection
    is_alive: Callable[[str], bool]
    """Whether another writer is."""


class Place(Protocol):
    """A database, and how it is told which of its writers are alive."""

    name: str
    """How to call it in an error message: no password."""

    def connect(self, busy_seconds: float, *, writable: bool) -> sa.Engine:
        """An engine: with one durable connection, or with some that cannot change anything, each of
        which sees in a transaction the log as it was at its beginning. May raise ConfigError."""
        ...

    def enter(
        self, engine: sa.Engine, writer: str, busy_seconds: float
    ) -> AbstractContextManager[Entrance]:
        """A transaction that no other writer can enter at the same time; after it ``writer`` is
        alive, until its process ends. Raises TimeoutError, SQLAlchemyError or OSError."""
        ...

    def leave(self) -> None:
        """The writer that entered is not alive any more."""
        ...


def wrong(message: str, hint: str) -> ConfigError:
    """An error in the URL of the log."""
    return ConfigError([Problem(message, path="audit.url", hint=hint)])


def trouble(error: Exception, place: Place) -> AuditUnavailable | ConfigError:
    """What to tell of ``error``, met while opening ``place``.

    A lock, a full disk or a server that is away may pass, so it is AuditUnavailable; the rest is
    ConfigError.
    """
    if error_name(error).startswith(_PASSING):
        return AuditUnavailable(f"the decision log {place.name} cannot be opened: {reason(error)}")
    return wrong(
        f"cannot open the decision log {place.name}: {reason(error)}",
        "audit.url must name a file in a directory that the gateway may write, or a PostgreSQL "
        "database that its user may create tables in",
    )


def reason(error: Exception) -> str:
    """The error's own words, without statement, values and file names: clients may see it."""
    if isinstance(error, DBAPIError):
        # PostgreSQL says more in further lines, with the values of the row.
        return str(error.orig).partition("\n")[0]
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def error_name(error: Exception) -> str:
    """The database's name of the error, ``SQLITE_FULL`` or ``53100``; empty when it has none."""
    cause = getattr(error, "orig", None)
    found = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
    # Where a server was never reached, it had no name to give.
    unreached = type(cause).__module__.startswith("psycopg") and isinstance(
        error, sa.exc.OperationalError
    )
    return str(found or ("08001" if unreached else ""))
