"""Erasure: takes captured texts out of the log, and seals what it did and why. Records stay.

Knows nothing of threads and tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from gateway.audit.facets import key
from gateway.audit.schema import Row, decisions, seals, texts
from gateway.audit.seals import Erasure, Pruning, kind_of, read_seal, text_of

STEP = 500
"""Requests whose texts go in one transaction: while it lasts, no other can be recorded."""


class Wanted(NamedTuple):
    """Whose texts are to go."""

    by: str
    """Who asks for it."""
    reason: str
    caller: str | None = None
    before: float | None = None
    """Seconds since the epoch: only of requests decided earlier."""
    decision_id: str | None = None


class Erased(NamedTuple):
    """What went."""

    requests: int
    """Whose texts are gone."""
    is_scrubbed: bool
    """False: the database's files may hold copies until a reader that is in the way has ended."""


class Erase:
    """One step: the texts of some requests that still have any."""

    def __init__(self, wanted: Wanted, writer: str, now: float) -> None:
        self._wanted = wanted
        self._writer = writer
        self._now = now
        self.erased = 0
        """Requests whose texts are gone; 0 when none had any."""

    def row(self) -> Row:
        """The seal's row; to make it erases what it tells of."""
        values = {"writer": self._writer, "created_at": self._now, "kind": kind_of(Erasure)}
        return Row(seals, values, self._erase)

    def _erase(self, connection: sa.Connection) -> Mapping[str, Any] | None:
        ids = self._candidates(connection)
        self.erased = len(ids)
        if not ids:
            return None
        gone = sa.update(texts).where(texts.c.decision_id.in_(ids)).values(ciphertext=None)
        connection.execute(gone)
        seal = Erasure(
            decision_ids=tuple(ids),
            by=self._wanted.by,
            reason=self._wanted.reason,
            caller=self._wanted.caller,
        )
        return {"document": text_of(seal)}

    def _candidates(self, connection: sa.Connection) -> Sequence[str]:
        wanted = self._wanted
        query = (
            sa.select(texts.c.decision_id)
            .join(decisions, decisions.c.decision_id == texts.c.decision_id)
            .where(texts.c.ciphertext.is_not(None))
            .distinct()
            .order_by(texts.c.decision_id)
            .limit(STEP)
        )
        if wanted.caller is not None:
            query = query.where(decisions.c.caller == key(wanted.caller))
        if wanted.before is not None:
            query = query.where(decisions.c.created_at < wanted.before)
        if wanted.decision_id is not None:
            query = query.where(texts.c.decision_id == key(wanted.decision_id))
        return connection.scalars(query).all()


class Miss(Erase):
    """The same for texts that are not there, as an import leaves them, where no seal says so yet."""

    def _candidates(self, connection: sa.Connection) -> Sequence[str]:
        # What was dropped before it was stored has never been there.
        query = (
            sa.select(texts.c.decision_id)
            .where(texts.c.ciphertext.is_(None), texts.c.stored > 0)
            .distinct()
            .order_by(texts.c.decision_id)
        )
        said = _said(connection)
        return [id_ for id_ in connection.scalars(query) if id_ not in said][:STEP]


def _said(connection: sa.Connection) -> set[str]:
    """The decisions whose texts are gone, by what seals say."""
    kinds = (kind_of(Erasure), kind_of(Pruning))
    found: set[str] = set()
    for row in connection.execute(sa.select(seals).where(seals.c.kind.in_(kinds))):
        seal = read_seal(row._asdict())
        if isinstance(seal, Erasure):
            found.update(seal.decision_ids)
        elif isinstance(seal, Pruning):
            found.update(seal.erased)
    return found
