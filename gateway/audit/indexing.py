"""Keeps the facets of requests in step with their records, and makes those that are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gateway.audit import document
from gateway.audit.facets import DECISION_COPIES, decision_facets, outcome_facets
from gateway.audit.schema import Row, decisions, facets, outcomes

_PAGE = 500


def index(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Write what ``rows``, which the caller has inserted, say of their requests."""
    made = [row.facets for row in rows if row.table is decisions and row.facets is not None]
    if made:
        connection.execute(sa.insert(facets), made)
    _add(connection, [row.facets for row in rows if row.table is outcomes and row.facets])


def fill(connection: sa.Connection) -> int:
    """Index the requests that have no facets: those of an older log, or of an imported one.

    Returns how many there were. The caller holds the transaction.
    """
    query = (
        sa.select(decisions, outcomes.c.document.label("outcome"))
        .outerjoin(outcomes, outcomes.c.decision_id == decisions.c.decision_id)
        .where(~sa.exists().where(facets.c.decision_id == decisions.c.decision_id))
        .order_by(decisions.c.seq)
        .limit(_PAGE)
    )
    done, last = 0, 0
    while rows := connection.execute(query.where(decisions.c.seq > last)).all():
        connection.execute(sa.insert(facets), [_decided(row) for row in rows])
        _add(connection, [made for row in rows if (made := _ended(row)) is not None])
        done, last = done + len(rows), rows[-1].seq
    return done


def _add(connection: sa.Connection, ended: Sequence[Mapping[str, Any]]) -> None:
    if not ended:
        return
    names = [name for name in ended[0] if name != "decision_id"]
    statement = (
        sa.update(facets)
        .where(facets.c.decision_id == sa.bindparam("of_decision"))
        .values({name: sa.bindparam(f"new_{name}") for name in names})
    )
    connection.execute(
        statement,
        [
            {"of_decision": made["decision_id"], **{f"new_{name}": made[name] for name in names}}
            for made in ended
        ],
    )


def _decided(row: sa.Row[Any]) -> Mapping[str, Any]:
    try:
        made = decision_facets(document.decode_decision(row.document))
        # The row's own: a document that was tampered with may name another's.
        return {**made, "decision_id": row.decision_id, "created_at": row.created_at}
    except msgspec.DecodeError:
        # It has to be found all the same: reading it says what is wrong with it.
        unknown = {"request_id": "", "digest": "", "team": None, "backend": "", "policy_hash": ""}
        flags = {"streamed": False, "denied": False, "truncated": False}
        return {
            **unknown,
            **flags,
            "scores": {},
            **{name: getattr(row, name) for name in DECISION_COPIES},
        }


def _ended(row: sa.Row[Any]) -> Mapping[str, Any] | None:
    if row.outcome is None:
        return None
    try:
        made = outcome_facets(document.decode_outcome(row.outcome))
        return {**made, "decision_id": row.decision_id}
    except msgspec.DecodeError:
        return None
