"""Finds the decisions that a crash left open. Knows nothing of how to tell a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sqlalchemy as sa

from gateway.audit.record import OutcomeRecord, Timings
from gateway.audit.schema import Row, decisions, outcome_row, outcomes, writers
from gateway.execution import Execution

_BATCH = 1000


def closing_rows(
    connection: sa.Connection, is_alive: Callable[[str], bool], now: float
) -> Iterator[list[Row]]:
    """For every open decision of a dead writer an ``interrupted`` outcome, in batches.

    The caller inserts each batch before it asks for the next, and holds the transaction; dead
    writers are forgotten.
    """
    for writer in connection.scalars(sa.select(writers.c.writer)).all():
        if is_alive(writer):
            continue
        while ids := _open_decisions(connection, writer):
            yield [outcome_row(_interrupted(decision_id, now)) for decision_id in ids]
        connection.execute(sa.delete(writers).where(writers.c.writer == writer))


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
