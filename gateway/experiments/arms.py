"""The ways to decode that an experiment compares, as the decisions that a policy would have come to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.errors import InvalidRequest
from gateway.types import LOSSY_VERIFIERS, Decision, DraftSetting, Mode

STANDARD = "standard"
AGAIN = "standard, other seeds"
"""Standard mode against itself: what two samples of one law look like."""


class Drafting(msgspec.Struct, frozen=True, kw_only=True):
    """How the arms that draft do so."""

    source: str = "suffix"
    num_speculative_tokens: int = 8
    standard_first: int = 10
    content_tokens: Mode = Mode.SPECULATIVE
    max_distortion: float = 0.1
    """The budget of lossy verifiers."""


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to decode."""

    name: str
    decision: Decision
    seeds: str = "shared"
    """Answers of arms with the same word here have the same seeds."""

    @property
    def drafts(self) -> bool:
        """Whether it is another mode than standard."""
        return self.decision.mode is not Mode.STANDARD

    @property
    def lossy(self) -> bool:
        """Whether its verifier may change what answers say."""
        return self.decision.max_distortion is not None


def arms(modes: Sequence[Mode], verifiers: Sequence[str], drafting: Drafting) -> tuple[Arm, ...]:
    """Standard mode first, whether it is named or not, then each mode with each verifier.

    Raises InvalidRequest where none drafts.
    """
    chosen = [mode for mode in dict.fromkeys(modes) if mode is not Mode.STANDARD]
    if not chosen:
        raise InvalidRequest("Nothing to compare with: name speculative or hybrid mode.")
    several = len(set(verifiers)) > 1 or tuple(verifiers) != ("coupled",)
    drafted = [
        Arm(
            name=f"{mode.value} {verifier}" if several else mode.value,
            decision=_drafted(mode, verifier, drafting),
        )
        for mode in chosen
        for verifier in dict.fromkeys(verifiers)
    ]
    return (standard_arm(), *drafted)


def standard_arm() -> Arm:
    """What all others are held against."""
    return Arm(name=STANDARD, decision=_decision(Mode.STANDARD))


def again() -> Arm:
    """Standard mode with seeds of its own."""
    return Arm(name=AGAIN, decision=_decision(Mode.STANDARD), seeds="other")


def _drafted(mode: Mode, verifier: str, drafting: Drafting) -> Decision:
    decision = msgspec.structs.replace(
        _decision(mode),
        verifier=verifier,
        draft=DraftSetting(drafting.source, drafting.num_speculative_tokens),
        max_distortion=drafting.max_distortion if verifier in LOSSY_VERIFIERS else None,
    )
    if mode is not Mode.HYBRID:
        return decision
    return msgspec.structs.replace(
        decision,
        standard_first=drafting.standard_first,
        content_tokens=drafting.content_tokens,
    )


def _decision(mode: Mode) -> Decision:
    return Decision(mode=mode, rule="experiment", policy="experiment", policy_hash="")
