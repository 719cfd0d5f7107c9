"""Closes the decisions that a crash left open. Knows nothing of how to tell a crash."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import sqlalchemy as sa

from gateway.audit.record import OutcomeRecord, Timings
from gateway.audit.schema import decisions, outcome_row, outcomes, writers
from gateway.types import Execution

_BATCH = 1000


def close_orphans(connection: sa.Connection, living: AbstractSet[str], now: float) -> int:
    """Give every open decision of a dead writer an ``interrupted`` outcome, and forget that writer.

    Returns how many were closed. The caller holds the transaction.
    """
    dead = [w for w in connection.scalars(sa.select(writers.c.writer)) if w not in living]
    closed = 0
    for writer in dead:
        while ids := _open_decisions(connection, writer):
            rows = [outcome_row(_interrupted(decision_id, now)).values for decision_id in ids]
            connection.execute(sa.insert(outcomes), rows)
            closed += len(ids)
        connection.execute(sa.delete(writers).where(writers.c.writer == writer))
    return closed


def _open_decisions(connection: sa.Connection, writer: str) -> list[str]:
    has_outcome = sa.exists().where(outcomes.c.decision_id == decisions.c.decision_id)
    query = (
        sa.select(decisions.c.decision_id)
        .where(decisions.c.writer == writer, ~has_outcome)
        .limit(_BATCH)
    )
    return list(connection.scalars(query))


def _interrupted(decision_id: str, now: float) -> OutcomeRecord:
    return OutcomeRecord(
        decision_id=decision_id,
        finished_at=now,
        finish_reasons=(),
        execution=Execution(),
        timings=Timings(),
        attestation="unknown",
        error="interrupted: the gateway stopped before this request was finished",
        interrupted=True,
    )
