"""What a shadow run is evidence of. Pure: two records in, one observation out."""

from __future__ import annotations

import hashlib

import msgspec

from gateway.audit.record import DecisionRecord, Shadow

NEAR_TIE = 1e-3
"""Nats: a token that was no farther ahead can change with the rounding of another batch."""


class ShadowEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that was decoded twice, and where it belongs."""

    domain: str
    """The most probable one; ``none`` where no classifier gave any."""
    mode: str
    model: str
    verifier: str
    rule: str
    equal: bool
    num_tokens: int
    is_near_tie: bool = False
    """Whether the first difference is one that rounding explains."""


def evidence_of(decision: DecisionRecord, shadow: Shadow) -> ShadowEvidence | None:
    """What the run says of its kind of request; None where it was dropped and says nothing."""
    if shadow.result == "dropped":
        return None
    top = decision.signals.top("domain")
    return ShadowEvidence(
        domain="none" if top is None else top.value,
        mode=decision.decision.mode.value,
        model=decision.request.model,
        verifier=decision.decision.verifier,
        rule=decision.decision.rule,
        equal=shadow.result == "equal",
        num_tokens=shadow.num_tokens,
        is_near_tie=shadow.margin is not None and shadow.margin <= NEAR_TIE,
    )


def is_chosen(decision_id: str, rate: float) -> bool:
    """Whether a request is one of the share ``rate`` that is decoded again: by its id alone."""
    bits = hashlib.sha256(f"draftgate shadow 1\n{decision_id}".encode()).digest()[:8]
    return int.from_bytes(bits) < rate * 2**64
