"""When evidence speaks against a cell: the causes of an alarm, in words too."""

from __future__ import annotations

import math

import msgspec

from gateway.audit.record import EvidenceEvent, OutcomeRecord
from gateway.evidence.state import CellState, is_exact

_WORDS = {
    "impossible_token": "an answer had a token that the target gives no probability",
    "attestation_failed": "something ran that was not decided",
    "e_value": "its answers do not follow the target's law",
    "change": "its answers have ceased to follow the target's law",
}
CAUSES = tuple(_WORDS)


class Bounds(msgspec.Struct, frozen=True):
    """What raises an alarm, and what follows."""

    alpha: float = 1e-6
    """The probability that a sound cell ever raises an alarm by its e-value."""
    attestation: bool = True
    """Whether a failed attestation raises one."""
    demote: bool = True
    """Whether an alarm demotes its cell."""

    @property
    def log_bound(self) -> float:
        """The natural logarithm from which on an e-value raises an alarm."""
        return -math.log(self.alpha)


def cause(state: CellState, outcome: OutcomeRecord, bounds: Bounds) -> str | None:
    """What speaks against a cell after this outcome, which is in its state already.

    A lossy verifier may leave the target's law, within a budget that is attested; nothing is made of
    its e-value.
    """
    if not state.is_news(outcome):
        return None
    run, exact = outcome.execution, is_exact(outcome.execution)
    if exact and run.tally is not None and run.tally.num_impossible:
        return "impossible_token"
    if bounds.attestation and outcome.attestation == "attestation_failed":
        return "attestation_failed"
    if not exact:
        return None
    if state.eprocess.log_e >= bounds.log_bound:
        return "e_value"
    return "change" if state.eprocess.log_change >= bounds.log_bound else None


def alarm(
    state: CellState, outcome: OutcomeRecord, why: str, bounds: Bounds, *, at: float
) -> EvidenceEvent:
    """The record of an alarm."""
    return EvidenceEvent(
        happened_at=at,
        kind="alarm",
        cell=state.cell,
        demotes=bounds.demote and not state.cell.is_standard,
        cause=why,
        decision_id=outcome.decision_id,
        log_e=state.eprocess.log_e,
        log_change=state.eprocess.log_change,
        num_tokens=state.tally.num_tokens,
    )


def words(event: EvidenceEvent) -> str:
    """Why, for people."""
    why = _WORDS.get(event.cause, event.cause)
    return f"{why} ({event.cause}, {event.decision_id})" if event.decision_id else why
