"""What is said of a finished request, flat: the fields of its log line, and of its span.

Fed from the records; no prompt or answer text comes here. Where OpenTelemetry's conventions for
generative AI have a name for something, it is theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gateway.audit.record import DecisionRecord, OutcomeRecord
from gateway.execution import Execution

SCHEMA_VERSION = 1
"""Of the fields: raised when one of them changes its meaning or goes away."""

Value = str | bool | int | float | Sequence[str] | None

_MAX_LENGTH = 256
"""Characters of one text."""
_OPERATIONS = {
    "chat.completions": "chat",
    "completions": "text_completion",
    "messages": "chat",
    "responses": "chat",
}


def attributes(decision: DecisionRecord, outcome: OutcomeRecord) -> dict[str, Value]:
    """Every field by its name; the same names for every request, None where there is nothing."""
    return {
        "schema_version": SCHEMA_VERSION,
        "decision_id": decision.decision_id,
        "request_id": short(decision.request_id),
        "traceparent": decision.traceparent,
        "caller": short(decision.caller.id),
        "team": short(decision.caller.team),
        "backend": decision.backend,
        **_asked(decision),
        **_decided(decision),
        **_ran(outcome.execution),
        "gen_ai.response.finish_reasons": [reason.value for reason in outcome.finish_reasons],
        "attestation": outcome.attestation,
        # A code: what follows the colon are words, which may be a backend's own.
        "error.type": outcome.error and short(outcome.error.partition(":")[0]),
        **_durations(outcome),
    }


def _asked(decision: DecisionRecord) -> Mapping[str, Value]:
    request, sampling = decision.request, decision.sampling
    return {
        "gen_ai.operation.name": _OPERATIONS.get(request.endpoint, short(request.endpoint)),
        "gen_ai.provider.name": "draftgate",
        "gen_ai.request.model": short(request.model),
        "gen_ai.request.stream": request.stream,
        "gen_ai.request.choice.count": request.n,
        "gen_ai.request.temperature": number(sampling.temperature),
        "gen_ai.request.top_p": number(sampling.top_p),
        "gen_ai.request.max_tokens": sampling.max_tokens,
    }


def _decided(decision: DecisionRecord) -> Mapping[str, Value]:
    top = decision.signals.top("domain")
    return {
        "domain": None if top is None else short(top.value),
        "domain_score": None if top is None else number(top.score),
        "policy_hash": decision.decision.policy_hash,
        "rule": short(decision.decision.rule),
        "mode_decided": decision.decision.mode.value,
    }


def _ran(execution: Execution) -> Mapping[str, Value]:
    return {
        "gen_ai.response.model": short(execution.model) or None,
        "mode_executed": execution.mode and execution.mode.value,
        "tightened_by": execution.tightened_by,
        "fallback": execution.fallback,
        "attested_by": execution.attested_by,
        "verifier": execution.verifier,
        "verifier_class": execution.verifier_class,
        "distortion": number(execution.distortion),
        "num_drafts": execution.num_drafts,
        "num_draft_tokens": execution.num_draft_tokens,
        "num_accepted_tokens": execution.num_accepted_tokens,
        "acceptance_rate": number(execution.acceptance_rate),
        "mean_acceptance_length": number(execution.mean_acceptance_length),
        "gen_ai.usage.input_tokens": execution.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": execution.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": execution.usage.cached_tokens,
    }


def _durations(outcome: OutcomeRecord) -> Mapping[str, Value]:
    timings, execution = outcome.timings, outcome.execution
    return {
        "classify_seconds": number(timings.classify),
        "decide_seconds": number(timings.decide),
        "record_seconds": number(timings.record),
        "queue_seconds": number(execution.queue_seconds),
        "prefill_seconds": number(execution.prefill_seconds),
        "decode_seconds": number(execution.decode_seconds),
        "gen_ai.response.time_to_first_chunk": number(timings.first_token),
        "total_seconds": number(timings.total),
    }


def short(text: str | None) -> str | None:
    """``text``, cut where it is longer than a line should be."""
    if text is None or len(text) <= _MAX_LENGTH:
        return text
    return f"{text[:_MAX_LENGTH]}…"


def number(value: float | None) -> float | None:
    """``value`` to a millionth; None for what JSON has no word for: NaN and infinity."""
    return round(value, 6) if value is not None and math.isfinite(value) else None
