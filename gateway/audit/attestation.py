"""Attestation: holds what ran, as the backend counted it, against everything that was decided.

What no count can show is not attested: whether a draft token stood on a content token, the
temperature, and what the verifier did with its scores. Knows nothing of storage or backends.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway.audit.record import DecisionRecord
from gateway.execution import Execution
from gateway.types import EXACT_VERIFIERS, Decision, Mode, Usage

_ROUNDING = 1e-9
"""A distortion is a sum of many small numbers."""


def attest(record: DecisionRecord, run: Execution) -> str:
    """``ok`` when what ran is what was decided, else ``attestation_failed``."""
    return "attestation_failed" if deviations(record, run) else "ok"


def deviations(record: DecisionRecord, run: Execution) -> tuple[str, ...]:
    """What ran that was not decided, in words; empty when there is nothing of that kind."""
    if _is_idle(run):
        return ()
    decision = _in_force(record.decision, run)
    if run.attested_by != "engine":
        return (
            *_plan(record, decision, run),
            *_length(record, run),
            *_foreign_drafts(decision, run),
        )
    return (
        *_opinion(record.decision, run),
        *_plan(record, decision, run),
        *_distortion(decision, run),
        *_length(record, run),
        *_drafts(decision, run),
        *_sums(run),
        *_measured(run),
    )


def _is_idle(run: Execution) -> bool:
    """Whether nothing ran: there is at most a place, a prompt and a time of waiting."""
    return run == Execution(
        backend=run.backend,
        model=run.model,
        usage=Usage(run.usage.prompt_tokens),
        queue_seconds=run.queue_seconds,
        fingerprint=run.fingerprint,
        attested_by=run.attested_by,
    )


def _in_force(decision: Decision, run: Execution) -> Decision:
    """What is held against what ran: all of standard mode, where the backend says it was stricter."""
    if run.tightened_by is None and run.fallback is None:
        return decision
    if _may_be_speculative(decision, run):
        return msgspec.structs.replace(decision, mode=Mode.SPECULATIVE, standard_first=0)
    return msgspec.structs.replace(
        decision,
        mode=Mode.STANDARD,
        verifier=decision.verifier if decision.max_distortion is None else EXACT_VERIFIERS[0],
        max_distortion=None,
        draft=None,
    )


def _may_be_speculative(decision: Decision, run: Execution) -> bool:
    """Whether the policy itself gives this mode in place of a hybrid one."""
    return (
        run.fallback == "no_continuation"
        and run.mode is Mode.SPECULATIVE
        and decision.mode is Mode.HYBRID
        and decision.hybrid_fallback is Mode.SPECULATIVE
        and Mode.SPECULATIVE.value not in decision.bans
    )


def _opinion(decided: Decision, run: Execution) -> Iterator[str]:
    """A second opinion that was made up, or was not heeded."""
    found = run.opinion
    if found is None:
        if run.tightened_by is not None:
            yield f"tightened by {run.tightened_by}, without what it found"
        return
    objects = found.rule is not None or found.error is not None
    if objects and decided.mode is not Mode.STANDARD and run.tightened_by is None:
        yield f"not tightened, though {found.source} says {found.rule or found.error}"


def _plan(record: DecisionRecord, decision: Decision, run: Execution) -> Iterator[str]:
    if decision.deny is not None:
        yield "it ran, though it was denied"
    verifier = (
        ("verifier", decision.verifier, run.verifier),
        ("verifier class", _verifier_class(decision), run.verifier_class),
    )
    # Another engine does not tell how it verifies, and nothing is claimed of it.
    is_told = run.attested_by == "engine" or bool(run.verifier or run.verifier_class)
    for what, decided, executed in (
        ("backend", record.backend, run.backend),
        ("model", record.request.model, run.model),
        ("mode", decision.mode, run.mode),
        *(verifier if is_told else ()),
    ):
        if executed != decided:
            yield f"{what} {executed or 'unknown'}, not {decided}"


def _verifier_class(decision: Decision) -> str:
    return "exact" if decision.max_distortion is None else "lossy"


def _distortion(decision: Decision, run: Execution) -> Iterator[str]:
    budget = decision.max_distortion or 0.0
    if not 0.0 <= run.distortion <= budget + _ROUNDING:
        yield f"a distortion of {run.distortion:.4g}, not {budget:.4g} at most"


def _length(record: DecisionRecord, run: Execution) -> Iterator[str]:
    longest, count = record.sampling.max_tokens, record.request.best_of or record.request.n
    if longest is not None and run.usage.completion_tokens > longest * count:
        yield f"{run.usage.completion_tokens} tokens from {count} x {longest}"


def _drafts(decision: Decision, run: Execution) -> Iterator[str]:
    if not _has_drafts(run):
        return
    draft, first = decision.draft, run.first_draft_position
    if draft is None:
        yield "draft tokens, though none was to be proposed"
        return
    if others := sorted(set(run.drafts_by_source) - {draft.source}):
        yield f"draft source {', '.join(others)}, not {draft.source}"
    if run.longest_draft > draft.num_speculative_tokens:
        yield f"a draft of {run.longest_draft} tokens, not {draft.num_speculative_tokens} at most"
    if first is not None and first < decision.standard_first:
        yield f"a draft token at position {first}, before {decision.standard_first}"


def _foreign_drafts(decision: Decision, run: Execution) -> Iterator[str]:
    """Another engine chooses its drafts itself; that there are none where none may be is attested."""
    if _has_drafts(run) and decision.draft is None:
        yield "draft tokens, though none was to be proposed"


def _has_drafts(run: Execution) -> bool:
    counts = (run.num_drafts, run.num_draft_tokens, run.num_accepted_tokens, run.longest_draft)
    return (
        any(counts)
        or any(run.accept_counts)
        or any(map(any, run.drafts_by_source.values()))
        or run.first_draft_position is not None
    )


def _sums(run: Execution) -> Iterator[str]:
    """Counts that contradict each other: something ran that one of them does not tell of."""
    by_source = run.drafts_by_source.values()
    accepted_counts = sum(k * count for k, count in enumerate(run.accept_counts))
    drafts, proposed, accepted = run.num_drafts, run.num_draft_tokens, run.num_accepted_tokens
    tokens = run.usage.completion_tokens
    for holds, what in (
        (sum(p for p, _ in by_source) == proposed, "proposed tokens by source"),
        (sum(a for _, a in by_source) == accepted == accepted_counts, "accepted tokens"),
        (sum(run.accept_counts) == drafts <= run.num_steps, "drafts"),
        (accepted <= proposed and drafts <= proposed <= drafts * run.longest_draft, "draft tokens"),
        (run.longest_draft <= proposed, "the longest draft"),
        ((run.first_draft_position is None) == (drafts == 0), "the first draft's position"),
        # A target pass emits a token of its own, and the draft tokens that it accepts.
        (run.num_steps <= tokens <= run.num_steps + accepted, "tokens and steps"),
    ):
        if not holds:
            yield f"the counts contradict each other: {what}"


def _measured(run: Execution) -> Iterator[str]:
    """What was measured of the tokens, where it cannot be of what was counted, or shows a fault."""
    tally = run.tally
    if tally is None:
        return
    if not 0 <= tally.num_impossible <= tally.num_tokens <= run.usage.completion_tokens:
        yield "the counts contradict each other: measured tokens"
    if tally.accepted.observed > run.num_accepted_tokens + _ROUNDING:
        yield "the counts contradict each other: measured accepted tokens"
    if tally.num_impossible and run.verifier_class == "exact":
        yield f"{tally.num_impossible} tokens that the model's law gives no probability"
