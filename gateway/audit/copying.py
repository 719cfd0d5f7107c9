"""Brings a log back from a file into an empty database, as it was."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from gateway.audit import database
from gateway.audit.holdings import PAGE, Held, Holdings, Stray
from gateway.audit.indexing import fill
from gateway.audit.place import Place, trouble, wrong
from gateway.audit.schema import LOGGED, chain, decisions, outcomes, writers

_NOBODY = "0" * 32
"""Stands for this copy where a writer comes in; it writes no link."""


def copy_in(holdings: Holdings, place: Place, busy_seconds: float = 5.0) -> Iterator[None]:
    """Write a whole log in one transaction; gives something for every link and row.

    Raises ConfigError when the database holds a log already, or AuditUnavailable.
    """
    engine = place.connect(busy_seconds, writable=True)
    try:
        with place.enter(engine, _NOBODY, busy_seconds) as (connection, _):
            database.migrate(connection, place)
            _refuse_full(connection, place)
            yield from _copy(holdings, connection)
            database.renumber(connection)
            fill(connection)
    except (SQLAlchemyError, OSError) as error:
        raise trouble(error, place) from error
    finally:
        engine.dispose()
        place.leave()


def _refuse_full(connection: sa.Connection, place: Place) -> None:
    for table in (chain, *(logged.table for logged in LOGGED.values())):
        if connection.execute(sa.select(table).limit(1)).first() is not None:
            raise wrong(
                f"{place.name} holds records already, and two logs cannot be mixed",
                "name a database that is empty or not there yet",
            )


def _copy(holdings: Holdings, connection: sa.Connection) -> Iterator[None]:
    # Other rows may refer to decisions, so those go first.
    for _ in _insert(connection, holdings, first=True):
        pass
    yield from _insert(connection, holdings, first=False)
    # What was open may be closed by the next start, which looks at the writers it knows.
    has_outcome = sa.exists().where(outcomes.c.decision_id == decisions.c.decision_id)
    still_open = sa.select(decisions.c.writer).where(~has_outcome).distinct()
    rows = [{"writer": writer, "started_at": 0.0} for writer in connection.scalars(still_open)]
    if rows:
        connection.execute(sa.insert(writers), rows)


def _insert(connection: sa.Connection, holdings: Holdings, *, first: bool) -> Iterator[None]:
    items: Iterator[Held | Stray] = _all(holdings)
    while page := list(islice(items, PAGE)):
        for name, logged in LOGGED.items():
            rows = [row for table, row in map(_row, page) if table == name and row is not None]
            if rows and (logged.table is decisions) == first:
                connection.execute(sa.insert(logged.table), rows)
        if not first:
            links = [msgspec.structs.asdict(item.link) for item in page if isinstance(item, Held)]
            if links:
                connection.execute(sa.insert(chain), links)
        yield from (None for _ in page)


def _all(holdings: Holdings) -> Iterator[Held | Stray]:
    yield from holdings.links()
    yield from holdings.strays()


def _row(item: Held | Stray) -> tuple[str, dict[str, Any] | None]:
    name = item.link.table_name if isinstance(item, Held) else item.table_name
    return name, None if item.row is None else dict(item.row)
