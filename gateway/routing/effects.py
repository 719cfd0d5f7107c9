"""What a decision does to an answer, and which of two decisions does more.

Looser is: faster (standard, then hybrid, then speculative), allowed rather than refused, a lossy
verifier rather than an exact one, a higher cap, a text that is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from gateway.types import Decision, Mode, SamplingLimits

_KEPT = {"none": 0, None: 1, "text": 2}
_SPEED = {Mode.STANDARD: 0, Mode.HYBRID: 1, Mode.SPECULATIVE: 2}


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between two decisions for the same request."""

    what: str
    old: str
    new: str
    looser: bool | None
    """None: neither looser nor tighter, only different."""

    def __str__(self) -> str:
        if self.what == "mode":
            return f"{self.old} → {self.new}"
        return f"{self.what} {self.old} → {self.new}"


def differences(old: Decision, new: Decision) -> tuple[Effect, ...]:
    """All in which the two differ, but for names, reasons and bans. Empty: they do the same."""
    if old.deny is not None or new.deny is not None:
        return tuple(_deny(old.deny, new.deny))
    return tuple(_all(old, new))


def is_looser(effects: tuple[Effect, ...]) -> bool:
    """Whether the new decision is looser in at least one thing."""
    return any(effect.looser for effect in effects)


def _deny(old: str | None, new: str | None) -> Iterator[Effect]:
    if old is None or new is None:
        words = ("allowed" if text is None else "denied" for text in (old, new))
        yield Effect(what="mode", old=next(words), new=next(words), looser=new is None)
    elif old != new:
        yield Effect(what="message", old=repr(old), new=repr(new), looser=None)


def _all(old: Decision, new: Decision) -> Iterator[Effect]:
    if old.mode is not new.mode:
        looser = _SPEED[new.mode] > _SPEED[old.mode]
        yield Effect(what="mode", old=old.mode.value, new=new.mode.value, looser=looser)
    elif old.mode is Mode.HYBRID:
        yield from _hybrid(old, new)
    if old.verifier != new.verifier:
        yield Effect(what="verifier", old=old.verifier, new=new.verifier, looser=None)
    yield from _number("max_distortion", old.max_distortion, new.max_distortion, none=0.0)
    yield from _temperature(old.limits, new.limits)
    yield from _number("max_tokens", old.limits.max_tokens, new.limits.max_tokens, none=math.inf)
    for what, was, now in (
        ("backend", old.backend, new.backend),
        ("draft", _draft(old), _draft(new)),
        ("shadow_rate", f"{old.shadow_rate:g}", f"{new.shadow_rate:g}"),
    ):
        # A draft comes and goes with the mode.
        if was != now and (what != "draft" or (was and now)):
            yield Effect(what=what, old=str(was or "any"), new=str(now or "any"), looser=None)
    if old.capture != new.capture:
        words = (decision.capture or "as configured" for decision in (old, new))
        looser = _KEPT[new.capture] > _KEPT[old.capture]
        yield Effect(what="capture", old=next(words), new=next(words), looser=looser)


def _hybrid(old: Decision, new: Decision) -> Iterator[Effect]:
    yield from _number("standard_first", old.standard_first, new.standard_first, up=False)
    if old.content_tokens is not new.content_tokens:
        looser = new.content_tokens is Mode.SPECULATIVE
        was, now = old.content_tokens.value, new.content_tokens.value
        yield Effect(what="content_tokens", old=was, new=now, looser=looser)
    yield from _number("max_entropy", old.max_entropy, new.max_entropy, none=math.inf)
    if old.hybrid_fallback is not new.hybrid_fallback:
        looser = new.hybrid_fallback is Mode.SPECULATIVE
        was, now = old.hybrid_fallback.value, new.hybrid_fallback.value
        yield Effect(what="hybrid_fallback", old=was, new=now, looser=looser)


def _temperature(old: SamplingLimits, new: SamplingLimits) -> Iterator[Effect]:
    """A fixed temperature is under its cap; so is what a caller may choose where none is fixed."""
    if old.temperature is None and new.temperature is None:
        yield from _number(
            "max_temperature", old.max_temperature, new.max_temperature, none=math.inf
        )
        return
    was, now = _hottest(old), _hottest(new)
    words = [_shown_temperature(limits) for limits in (old, new)]
    if words[0] != words[1]:
        yield Effect(what="temperature", old=words[0], new=words[1], looser=now > was)


def _hottest(limits: SamplingLimits) -> float:
    given = (limits.temperature, limits.max_temperature)
    return min((each for each in given if each is not None), default=math.inf)


def _shown_temperature(limits: SamplingLimits) -> str:
    hottest = _hottest(limits)
    if limits.temperature is not None:
        return f"{hottest:g}"
    return "none" if hottest == math.inf else f"at most {hottest:g}"


def _number(
    what: str, old: float | None, new: float | None, *, none: float = 0.0, up: bool = True
) -> Iterator[Effect]:
    was, now = (none if value is None else value for value in (old, new))
    if was != now:
        words = ("none" if value is None else f"{value:g}" for value in (old, new))
        yield Effect(what=what, old=next(words), new=next(words), looser=(now > was) is up)


def _draft(decision: Decision) -> str:
    draft = decision.draft
    return f"{draft.source} of {draft.num_speculative_tokens}" if draft else ""
