"""The probabilities from which on a policy's bans hold: what a classifier is measured at.

Knows nothing of classifiers or of how good they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from gateway.routing.policy import Policy, Rule
from gateway.routing.when import When
from gateway.types import Mode

TOP = 0.5
"""The least probability at which a condition without one can hold."""


class Bar(msgspec.Struct, frozen=True):
    """A rule bans where the probability of ``domain`` is ``threshold`` or more."""

    rule: str
    domain: str
    threshold: float
    limited: str = ""
    """Why reaching it is not enough, in words; empty where every such request is banned from
    every faster mode."""


def bars(policy: Policy) -> tuple[Bar, ...]:
    """Every bar of every ban, in the order of the rules."""
    layered = {rule.id for layer in policy.layers for _, rule in layer.bans}
    return tuple(
        bar
        for rule in policy.rules
        if rule.kind == "ban"
        for bar in _of(rule, "for some callers only" if rule.id in layered else "")
    )


def thresholds(policy: Policy) -> Mapping[str, float]:
    """For each domain that is banned whatever else holds, the lowest bar."""
    lowest: dict[str, float] = {}
    for bar in bars(policy):
        if not bar.limited:
            lowest[bar.domain] = min(bar.threshold, lowest.get(bar.domain, 1.0))
    return lowest


def _of(rule: Rule, limited: str) -> Iterator[Bar]:
    if rule.when is None:
        return
    if open_modes := [m.value for m in Mode if m is not Mode.STANDARD and m not in rule.bans]:
        limited = limited or f"{', '.join(open_modes)} is not banned"
    yield from _within(rule.id, rule.when, limited)


def _within(rule: str, when: When, limited: str) -> Iterator[Bar]:
    given = [name for name in when.__struct_fields__ if getattr(when, name) is not None]
    here = limited or ("the rule asks for more" if len(given) > 1 else "")
    if (test := when.domain) is not None:
        top = "" if test.min_probability else "the most probable domain only"
        for domain in test.values:
            yield Bar(rule, domain, test.min_probability or TOP, here or top)
    for part in when.any_ or ():
        yield from _within(rule, part, here)
    parts = when.all_ or ()
    for part in parts:
        yield from _within(rule, part, here or ("the rule asks for more" if parts[1:] else ""))
