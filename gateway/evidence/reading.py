"""`Reading`: the state of a cell as people read it, every figure with its interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from gateway.audit.record import EvidenceEvent
from gateway.cell import Cell
from gateway.classification.intervals import lower_bound, upper_bound
from gateway.evidence.confidence import interval
from gateway.evidence.state import CellState
from gateway.tally import Moments

ALPHA = 0.05
"""One in twenty intervals does not hold what it should, ever, however often one looks."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen against what the target's law makes expect; None where nothing was measured."""

    observed: float
    expected: float
    mean: float | None = None
    """(observed - expected) per measured token; 0 where the target's law holds."""
    low: float | None = None
    high: float | None = None
    """Of the mean: at all times at once, asymptotically."""
    ratio: float | None = None
    """observed / expected; 1 where the target's law holds."""
    ratio_low: float | None = None
    ratio_high: float | None = None

    @classmethod
    def of(cls, moments: Moments, count: int) -> Difference:
        """The difference over so many measured tokens."""
        observed, expected = moments.observed, moments.expected
        if not count:
            return cls(observed=observed, expected=expected)
        low, high = interval(moments, count, ALPHA)
        mean = (observed - expected) / count
        if expected <= 0:
            return cls(observed=observed, expected=expected, mean=mean, low=low, high=high)
        return cls(
            observed=observed,
            expected=expected,
            mean=mean,
            low=low,
            high=high,
            ratio=observed / expected,
            ratio_low=max(0.0, 1 + low * count / expected),
            ratio_high=1 + high * count / expected,
        )


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """Answers that were decoded again in standard mode."""

    runs: int
    equal: int
    """Those whose tokens were the same."""
    low: float
    high: float
    """Of the share of equal ones: Clopper and Pearson, 95 %."""

    @classmethod
    def of(cls, equal: int, runs: int) -> Shadow:
        """So many equal ones of so many."""
        side = 1 - ALPHA / 2
        low = lower_bound(equal, runs, side) if runs else 0.0
        return cls(runs=runs, equal=equal, low=low, high=upper_bound(equal, runs, side))


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One cell."""

    id: str
    cell: Cell
    state: str
    """``ok``, ``alarm`` or ``demoted``."""
    requests: int
    tokens: int
    measured_tokens: int
    impossible_tokens: int
    log10_e: float | None
    """Of the e-value since the last clearing; None: the bet is lost for good."""
    log10_change: float | None
    acceptance: Difference
    surprisal: Difference
    """Nats; a mean below 0: more assertive than the target."""
    tail: Difference
    draft_blind: Difference
    hedging: Difference
    lossy_requests: int
    distortion: float
    """Spent by lossy verifiers, summed over requests …"""
    budget: float
    """… of what they were allowed to."""
    remaining_budget: float
    attestation_failures: int
    shadow: Shadow
    last_at: float | None
    last_event: EvidenceEvent | None
    """The last alarm or clearing; None: there never was one."""

    @classmethod
    def of(cls, state: CellState, event: EvidenceEvent | None) -> Reading:
        """The reading of a cell with this last event."""
        tally, bet = state.tally, state.eprocess
        count = tally.num_tokens
        return cls(
            id=state.cell.id,
            cell=state.cell,
            state=condition(event),
            requests=state.requests,
            tokens=state.num_tokens,
            measured_tokens=count,
            impossible_tokens=tally.num_impossible,
            log10_e=_log10(bet.log_e),
            log10_change=_log10(bet.log_change),
            acceptance=Difference.of(tally.accepted, count),
            surprisal=Difference.of(tally.surprisal, count),
            tail=Difference.of(tally.tail, count),
            draft_blind=Difference.of(tally.draft_blind, count),
            hedging=Difference.of(tally.hedging, count),
            lossy_requests=state.lossy_requests,
            distortion=state.distortion,
            budget=state.budget,
            remaining_budget=max(0.0, state.budget - state.distortion),
            attestation_failures=state.attestation_failures,
            shadow=Shadow.of(state.shadow_equal, state.shadow_runs),
            last_at=state.last_at or None,
            last_event=event,
        )


def readings(
    states: Iterable[CellState], events: Mapping[str, EvidenceEvent]
) -> tuple[Reading, ...]:
    """All cells, those in alarm first; ``events`` are the last ones, by the id of their cell."""
    cells = {state.cell.id: state for state in states}
    for cell_id, event in events.items():
        # An event outlives what it was made from, should somebody have emptied the snapshot.
        cells.setdefault(cell_id, CellState(cell=event.cell))
    found = [Reading.of(state, events.get(cell_id)) for cell_id, state in cells.items()]
    return tuple(sorted(found, key=lambda reading: reading.state == "ok"))


def condition(event: EvidenceEvent | None) -> str:
    """``ok``, ``alarm`` or ``demoted``, by a cell's last event."""
    if event is None or event.kind == "clearing":
        return "ok"
    return "demoted" if event.demotes else "alarm"


def _log10(natural: float) -> float | None:
    return natural / math.log(10) if math.isfinite(natural) else None
