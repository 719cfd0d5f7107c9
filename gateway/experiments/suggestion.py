"""What the measurements suggest for each domain, and what the policy in force has to say about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gateway.experiments.matrix import Measured
from gateway.routing.cases import DEFAULT_NOW
from gateway.routing.decide import decide
from gateway.routing.policy import Policy
from gateway.routing.testing import given_signals
from gateway.types import DOMAINS, Caller, ChatRequest, Decision, Message, Mode

GUARDED = ("medical", "legal")
"""Domains for which no measurement of speed is a reason: the policy in force must have allowed it."""
PROBABILITY = 0.95
"""Of the domain, in the request that stands for all of its kind."""
_SPEED = {Mode.STANDARD: 0, Mode.HYBRID: 1, Mode.SPECULATIVE: 2}


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with one domain."""

    domain: str
    mode: Mode
    reason: str
    measured: Measured | None = None
    """The arm that was fastest for sure, whether or not it is suggested; None: none was faster."""


def suggest(
    found: Sequence[Measured], policy: Policy, *, min_speedup: float
) -> tuple[Suggestion, ...]:
    """One for each domain that a policy can name, in the order of ``found``.

    A mode is worth it where even the lower end of its speed-up's interval is above ``min_speedup`` and
    evidence speaks against nothing, with the tokens of standard mode in every answer.
    """
    domains = [name for name in dict.fromkeys(one.domain for one in found) if name in DOMAINS]
    return tuple(
        _suggest(name, [one for one in found if one.domain == name], policy, min_speedup)
        for name in domains
    )


def decided(policy: Policy, domains: Mapping[str, float]) -> Decision:
    """What a policy decides for a plain English request that is about ``domains``."""
    return decide(
        policy,
        given_signals(domains, language="en"),
        ChatRequest(model="test", messages=(Message("user", ""),)),
        Caller(),
        prompt_tokens=1,
        now=DEFAULT_NOW,
    )


def guards(policy: Policy) -> dict[str, tuple[Mode, ...]]:
    """For each of `GUARDED`, the modes that the policy does not decide for it, without a ban of its own.

    A policy with other rules must ban them, or a request that is about code as well could get them.
    """
    found = {}
    for domain in GUARDED:
        now = decided(policy, {domain: PROBABILITY})
        faster = [
            mode for mode in (Mode.SPECULATIVE, Mode.HYBRID) if _SPEED[mode] > _SPEED[now.mode]
        ]
        if open_ones := tuple(mode for mode in faster if mode.value not in now.bans):
            found[domain] = open_ones
    return found


def _suggest(
    domain: str, found: Sequence[Measured], policy: Policy, min_speedup: float
) -> Suggestion:
    standard = Suggestion(domain=domain, mode=Mode.STANDARD, reason="")
    unsound = [one.arm for one in found if not one.sound]
    unequal = [one.arm for one in found if one.sound and not _is_equal(one)]
    best = max((one for one in found if _pays(one, min_speedup)), key=_lower_end, default=None)
    if best is None:
        reason = f"nothing was at least {min_speedup:g} times as fast for sure"
        if unequal:
            reason = f"{', '.join(unequal)} gave other tokens than standard mode"
        if unsound:
            reason = f"evidence speaks against {', '.join(unsound)}"
        return msgspec.structs.replace(standard, reason=reason)
    mode = Mode(best.mode)
    if objection := _objection(domain, mode, decided(policy, {domain: PROBABILITY})):
        return msgspec.structs.replace(standard, reason=objection, measured=best)
    reason = f"at least {_lower_end(best):.2f} times as fast, and nothing speaks against it"
    return Suggestion(domain=domain, mode=mode, reason=reason, measured=best)


def _objection(domain: str, mode: Mode, now: Decision) -> str | None:
    """Why the policy in force forbids the mode; None where it does not."""
    if now.deny is not None:
        return f"the policy in force refuses such requests, by {now.rule}"
    if mode.value in now.bans:
        return f"{mode.value} is banned by {now.bans[mode.value]} of the policy in force"
    if domain in GUARDED and _SPEED[now.mode] < _SPEED[mode]:
        return (
            f"the policy in force decides {now.mode.value} for {domain} requests, and speed is no "
            "reason to change that"
        )
    return None


def _pays(one: Measured, min_speedup: float) -> bool:
    return one.sound and _is_equal(one) and _lower_end(one) > min_speedup


def _is_equal(one: Measured) -> bool:
    """Whether all its answers have the tokens of standard mode, as the verifier promises."""
    return one.equal.hits == one.equal.rows


def _lower_end(one: Measured) -> float:
    return 0.0 if one.speedup is None or one.speedup.low is None else one.speedup.low
