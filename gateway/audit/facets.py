"""What a request is looked for by, as values of one narrow row. Knows nothing of databases.

The records are the truth: whatever is here can be made from them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.audit.record import DecisionRecord, OutcomeRecord
from gateway.types import FinishReason

KEY_LENGTH = 256
"""Characters of a text that an index keeps; PostgreSQL refuses index entries over 2.7 kB."""
DECISION_COPIES = ("decision_id", "created_at", "caller", "model", "domain", "mode", "rule")
"""What also stands in the columns of the decision itself, with the same value."""


def decision_facets(record: DecisionRecord) -> Mapping[str, Any]:
    """The row of a request that has been decided."""
    top = record.signals.top("domain")
    names = {signal.value for signal in record.signals.items if signal.name == "domain"}
    return {
        "decision_id": record.decision_id,
        "created_at": record.created_at,
        "request_id": key(record.request_id),
        "digest": record.request.digest[:64],
        "caller": key(record.caller.id),
        "team": None if record.caller.team is None else key(record.caller.team),
        "model": key(record.request.model),
        "backend": key(record.backend),
        "domain": None if top is None else key(top.value),
        "scores": {
            key(name): score
            for name in sorted(names)
            if math.isfinite(score := record.signals.score("domain", name))
        },
        "mode": record.decision.mode.value,
        "rule": key(record.decision.rule),
        "policy_hash": key(record.decision.policy_hash),
        "streamed": record.request.stream,
        "denied": record.decision.deny is not None,
        "truncated": record.signals.truncated,
    }


def outcome_facets(record: OutcomeRecord) -> Mapping[str, Any]:
    """What the outcome adds to the row, with the ``decision_id`` of the request."""
    execution, timings = record.execution, record.timings
    reasons = distinct(record.finish_reasons)
    return {
        "decision_id": record.decision_id,
        "executed": execution.mode and execution.mode.value,
        "verifier_class": execution.verifier_class and key(execution.verifier_class)[:16],
        "attestation": record.attestation,
        # Between commas, so that each can be looked for whole.
        "finish_reasons": f",{reasons}," if reasons else None,
        "failed": record.error is not None,
        "interrupted": record.interrupted,
        "tightened": execution.tightened_by is not None,
        "prompt_tokens": execution.usage.prompt_tokens,
        "completion_tokens": execution.usage.completion_tokens,
        "draft_tokens": execution.num_draft_tokens,
        "accepted_tokens": execution.num_accepted_tokens,
        "gateway_seconds": timings.classify + timings.decide + timings.record,
        "first_token_seconds": timings.first_token,
        "total_seconds": timings.total,
    }


def distinct(reasons: Iterable[FinishReason]) -> str:
    """The reasons of a request's choices, each once and in a fixed order."""
    return ",".join(sorted({reason.value for reason in reasons}))


def key(text: str) -> str:
    """``text`` as an index keeps it: cut, and without the characters that a database refuses."""
    return text[:KEY_LENGTH].replace("\0", "�").encode("utf-8", "replace").decode("utf-8")
