"""API keys in a table of an SQL database, so that several gateways share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from gateway.access.keys import StoredKey
from gateway.access.store import Keys
from gateway.errors import ConfigError, Problem

T = TypeVar("T")

_metadata = sa.MetaData()
_keys = sa.Table(
    "draftgate_api_keys",
    _metadata,
    sa.Column("handle", sa.String(32), primary_key=True),
    sa.Column("document", sa.Text, nullable=False),
)
_state = sa.Table(
    "draftgate_api_keys_state",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)
_DRIVERS = {"postgresql": "postgresql+psycopg"}
_BUSY_SECONDS = 10


class SqlKeyStore:
    """A `KeyStore` in a database; its tables are made by the first use."""

    def __init__(self, url: str) -> None:
        """Connects to nothing yet. Raises ConfigError for a URL that is none."""
        try:
            parsed = sa.make_url(url)
        except (ArgumentError, ValueError):
            raise _wrong("auth.store", "this is not a database URL") from None
        self.name = parsed.render_as_string(hide_password=True)
        parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
        options = {"timeout": _BUSY_SECONDS} if parsed.get_backend_name() == "sqlite" else {}
        try:
            # Nothing is kept open: it is asked once a second, and nobody has to close it.
            self._engine = sa.create_engine(parsed, connect_args=options, poolclass=sa.NullPool)
        except (SQLAlchemyError, ImportError):
            raise _wrong(self.name, "there is no driver for this database") from None
        if options:
            sa.event.listen(self._engine, "begin", _begin)
        self._made = False

    def version(self) -> object:
        """A number that each change raises."""
        return self._run(lambda connection: connection.scalar(sa.select(_state.c.version)))

    def read(self) -> Keys:
        """See `KeyStore`."""
        return self._run(_read)

    def change(self, edit: Callable[[Keys], Keys]) -> None:
        """See `KeyStore`."""

        def replace(connection: sa.Connection) -> None:
            # The row that all changes take first: the next one waits here for this one's end.
            connection.execute(sa.update(_state).values(version=_state.c.version + 1))
            keys = edit(_read(connection))
            connection.execute(sa.delete(_keys))
            rows = [
                {"handle": key.handle, "document": msgspec.json.encode(key).decode()}
                for key in keys
            ]
            if rows:
                connection.execute(sa.insert(_keys), rows)

        self._run(replace)

    def _run(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            if not self._made:
                self._make()
            with self._engine.begin() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            # Its own words may hold the whole statement, and the statement what is secret.
            reason = type(getattr(error, "orig", None) or error).__name__
            raise _wrong(self.name, f"the store of keys does not answer: {reason}") from error
        except msgspec.MsgspecError as error:
            raise _wrong(self.name, f"the store of keys holds what is no key: {error}") from error

    def _make(self) -> None:
        with self._engine.begin() as connection:
            _metadata.create_all(connection)
            if connection.scalar(sa.select(_state.c.version)) is None:
                connection.execute(sa.insert(_state), {"id": 1, "version": 0})
        self._made = True


def _read(connection: sa.Connection) -> Keys:
    documents = connection.scalars(sa.select(_keys.c.document).order_by(_keys.c.handle))
    keys = [msgspec.json.decode(document, type=StoredKey) for document in documents]
    return tuple(sorted(keys, key=lambda key: key.created_at))


def _begin(connection: sa.Connection) -> None:
    # A transaction that begins as a reader cannot wait for a lock when it turns into a writer.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _wrong(place: str, message: str) -> ConfigError:
    hint = "check auth.store: a path, sqlite:////path/keys.db or postgresql://user@host/database"
    return ConfigError([Problem(message, path=place, hint=hint)])
