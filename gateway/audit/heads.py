"""Asks the database about its chains: which there are, where they begin and end, what follows.

Knows nothing of keys, and believes what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from gateway.audit.chain import Head, Link
from gateway.audit.schema import chain, seals
from gateway.audit.seals import Opening, Pruning, Seal, read_seal


def chains(connection: sa.Connection) -> Iterator[str]:
    """The writers that have links. Skips from one to the next, however long their chains are."""
    last = ""
    while True:
        query = sa.select(sa.func.min(chain.c.writer)).where(chain.c.writer > last)
        found: str | None = connection.scalar(query)
        if found is None:
            return
        yield found
        last = found


def head(connection: sa.Connection, writer: str) -> Head:
    """The last link of a writer."""
    query = (
        sa.select(chain.c.position, chain.c.mac)
        .where(chain.c.writer == writer)
        .order_by(chain.c.position.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    return Head() if row is None else Head(row.position, row.mac)


def links(connection: sa.Connection, writer: str, *, after: int = 0, limit: int) -> list[Link]:
    """The next links of a writer, in the order of their positions."""
    query = (
        sa.select(chain)
        .where(chain.c.writer == writer, chain.c.position > after)
        .order_by(chain.c.position)
        .limit(limit)
    )
    return [Link(**row._asdict()) for row in connection.execute(query)]


def oldest_first(connection: sa.Connection) -> list[str]:
    """The writers, by when their first link was recorded."""
    first = {writer: links(connection, writer, limit=1)[0] for writer in chains(connection)}
    return sorted(first, key=lambda writer: (first[writer].recorded_at, writer))


def unspoken(connection: sa.Connection) -> dict[str, Head]:
    """Where the chains end of which no opening has said so yet."""
    spoken: dict[str, Head] = {}
    for opening in _read(connection, "opening"):
        if isinstance(opening, Opening):
            spoken.update(opening.heads)
    now = {writer: head(connection, writer) for writer in chains(connection)}
    return {writer: found for writer, found in now.items() if spoken.get(writer) != found}


def mentioned(connection: sa.Connection) -> set[str]:
    """The writers that some opening speaks of."""
    openings = _read(connection, "opening")
    return {w for opening in openings if isinstance(opening, Opening) for w in opening.heads}


def last_pruning(connection: sa.Connection) -> Pruning | None:
    """What retention has dropped so far; None when nothing."""
    query = sa.select(seals).where(seals.c.kind == "pruning").order_by(seals.c.seq.desc()).limit(1)
    row = connection.execute(query).first()
    seal = None if row is None else read_seal(row._asdict())
    return seal if isinstance(seal, Pruning) else None


def _read(connection: sa.Connection, kind: str) -> Iterator[Seal | None]:
    query = sa.select(seals).where(seals.c.kind == kind).order_by(seals.c.seq)
    for row in connection.execute(query):
        yield read_seal(row._asdict())
