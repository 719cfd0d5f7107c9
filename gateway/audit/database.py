"""The database of the decision log: found by its URL, and brought up to date.

Knows nothing of records.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from gateway.audit import sqlite
from gateway.audit.place import EXAMPLE, EXAMPLE_SERVER, Place, reason, trouble, wrong
from gateway.audit.schema import LOGGED, REVISION

__all__ = ["connect_reader", "locate", "migrate", "reason", "renumber", "scrub"]

# A driver named here is not needed; one that would encrypt must not be left out without a word.
_SQLITE = {"sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"}
_POSTGRESQL = {"postgresql", "postgresql+psycopg", "postgresql+asyncpg"}


def locate(url: str) -> Place:
    """The database that ``url`` names; it need not exist yet. Raises ConfigError."""
    hint = f"write it like {EXAMPLE} or {EXAMPLE_SERVER}"
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError) as error:
        raise wrong("this is not a database URL", hint) from error
    if parsed.drivername in _SQLITE and not parsed.host:
        return sqlite.locate(parsed)
    if parsed.drivername in _POSTGRESQL:
        # Its driver takes longer to import than a file needs to be opened.
        from gateway.audit import postgresql

        return postgresql.locate(parsed)
    shown = parsed.render_as_string(hide_password=True)
    raise wrong(f"cannot keep the decision log in {shown!r}", hint)


def connect_reader(place: Place, busy_seconds: float) -> sa.Engine:
    """An engine that can read beside a running gateway, and cannot create or change anything.

    Raises ConfigError when there is no decision log of this version at ``place``, AuditUnavailable
    for what may pass.
    """
    engine = place.connect(busy_seconds, writable=False)
    try:
        with engine.connect() as connection:
            found = _revision(connection)
    except SQLAlchemyError as error:
        engine.dispose()
        raise trouble(error, place) from error
    if found != REVISION:
        engine.dispose()
        raise wrong(
            f"{place.name} is not a decision log of this version ({found or 'none'}, "
            f"not {REVISION})",
            "start the gateway once: it brings an older log up to date",
        )
    return engine


def migrate(connection: sa.Connection, place: Place) -> bool:
    """Bring the schema up to date. The caller holds the transaction.

    Returns whether it was behind: its requests may then lack what `indexing.fill` makes.
    Raises ConfigError when a newer version wrote the database.
    """
    if _revision(connection) == REVISION:
        return False
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
        raise wrong(
            f"a newer version wrote the decision log {place.name}: {error}",
            "use that version, or give another URL",
        ) from error
    return True


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return found


def renumber(connection: sa.Connection) -> None:
    """Let the database number new rows from where rows that brought their numbers ended."""
    if connection.dialect.name == "postgresql":
        from gateway.audit import postgresql

        tables = [logged.table for logged in LOGGED.values()]
        postgresql.renumber(connection, tables)


def scrub(engine: sa.Engine) -> bool:
    """Take erased texts out of the files too, as far as the database lets us; False: not now.

    In PostgreSQL that is what VACUUM does, in its own time.
    """
    return engine.dialect.name != "sqlite" or sqlite.scrub(engine)
