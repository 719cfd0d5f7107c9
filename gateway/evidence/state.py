"""`CellState`: what all outcomes of one cell add up to. Knows nothing of storage or alarms."""

from __future__ import annotations

import msgspec

from gateway.audit.record import DecisionRecord, OutcomeRecord
from gateway.cell import Cell, domain_of
from gateway.evidence.eprocess import EProcess
from gateway.evidence.trail import Trail
from gateway.execution import Execution
from gateway.tally import Tally
from gateway.types import Mode

NO_TALLY = Tally()


class CellState(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over requests, in the order of the log."""

    cell: Cell
    requests: int = 0
    num_tokens: int = 0
    """Emitted tokens, measured or not."""
    tally: Tally = NO_TALLY
    eprocess: EProcess = EProcess()
    """Since the last clearing; all else is from the beginning."""
    trail: Trail = Trail()
    """Of the e-value, since the last clearing too."""
    lossy_requests: int = 0
    distortion: float = 0.0
    """What lossy verifiers have spent, summed over requests."""
    budget: float = 0.0
    """What they were allowed to spend."""
    attestation_failures: int = 0
    shadow_runs: int = 0
    shadow_equal: int = 0
    """Shadow runs that gave the very tokens of the answer."""
    cleared_at: float = 0.0
    """Seconds since the epoch; what ended until then bears witness no more, and still counts."""
    last_at: float = 0.0

    def add(self, decision: DecisionRecord, outcome: OutcomeRecord) -> CellState:
        """The state after one more outcome."""
        run = outcome.execution
        tally = run.tally or NO_TALLY
        budget = decision.decision.max_distortion
        # What ran may be lossy where an exact verifier was decided: that is no evidence of the cell.
        bets = self.is_news(outcome) and (is_exact(run) or self.cell.verifier == run.verifier)
        total = self.tally + tally
        eprocess = self.eprocess.update(tally) if bets else self.eprocess
        is_measured = bets and tally.num_tokens > 0
        return msgspec.structs.replace(
            self,
            requests=self.requests + 1,
            num_tokens=self.num_tokens + run.usage.completion_tokens,
            tally=total,
            eprocess=eprocess,
            trail=self.trail.add(total.num_tokens, eprocess.log_e) if is_measured else self.trail,
            lossy_requests=self.lossy_requests + (budget is not None),
            distortion=self.distortion + run.distortion,
            budget=self.budget + (budget or 0.0),
            attestation_failures=self.attestation_failures
            + (outcome.attestation == "attestation_failed"),
            last_at=max(self.last_at, outcome.finished_at),
        )

    def is_news(self, outcome: OutcomeRecord) -> bool:
        """Whether the outcome is of after the last clearing."""
        return outcome.finished_at > self.cleared_at

    def cleared(self, at: float) -> CellState:
        """The state with its bet begun anew at that time."""
        return msgspec.structs.replace(self, eprocess=EProcess(), trail=Trail(), cleared_at=at)

    def observe_shadow(self, equal: bool) -> CellState:
        """The state after one more shadow run."""
        return msgspec.structs.replace(
            self,
            shadow_runs=self.shadow_runs + 1,
            shadow_equal=self.shadow_equal + equal,
        )


def executed_cell(decision: DecisionRecord, run: Execution) -> Cell | None:
    """The cell of what ran; None where nothing did."""
    if run.mode is None:
        return None
    draft = ""
    if run.mode is not Mode.STANDARD:
        # A run that found nothing to draft from belongs where it was decided to draft.
        decided = decision.decision.draft
        draft = next(iter(run.drafts_by_source), "") if decided is None else decided.source
    return Cell(
        domain=domain_of(decision.signals),
        mode=run.mode.value,
        verifier=run.verifier or decision.decision.verifier,
        model=decision.request.model,
        draft=draft,
    )


def is_exact(run: Execution) -> bool:
    """Whether the answer was to follow the target's law: a lossy one is held to its budget, and of
    one whose verifier nobody knows nothing is said."""
    return run.verifier_class == "exact"
