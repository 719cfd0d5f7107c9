"""`explain`: every condition of every rule on one request, held or not, on which value.

`decide` stops at the first condition that settles a rule; here all are looked at, for people who ask
why. The tests are those that `decide` runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway.routing.conditions import compile_when
from gateway.routing.facts import Facts
from gateway.routing.policy import Policy
from gateway.routing.when import When


class ConditionTrace(msgspec.Struct, frozen=True):
    """One condition and, of ``all``, ``any`` and ``not``, those inside it."""

    condition: str
    """Its key: ``domain``, ``all``, …; ``when`` for the mapping that holds several."""
    holds: bool
    detail: str
    """The value that was seen; empty where the conditions inside say it."""
    inside: tuple[ConditionTrace, ...] = ()


def explain(policy: Policy, facts: Facts) -> tuple[ConditionTrace | None, ...]:
    """The conditions of each rule of the policy, in its order; None for a rule without any."""
    return tuple(
        None if rule.when is None else _mapping("when", rule.when, facts) for rule in policy.rules
    )


def _mapping(name: str, when: When, facts: Facts) -> ConditionTrace:
    inside = tuple(_conditions(when, facts))
    if name == "when" and len(inside) == 1:
        return inside[0]
    return ConditionTrace(name, all(part.holds for part in inside), "", inside)


def _conditions(when: When, facts: Facts) -> Iterator[ConditionTrace]:
    for field in when.__struct_fields__:
        value = getattr(when, field)
        if value is None:
            continue
        if field == "not_":
            inner = _mapping("when", value, facts)
            yield ConditionTrace("not", not inner.holds, "", (inner,))
        elif field in ("all_", "any_"):
            parts = tuple(_mapping("when", part, facts) for part in value)
            holds = (all if field == "all_" else any)(part.holds for part in parts)
            yield ConditionTrace(field.rstrip("_"), holds, "", parts)
        else:
            holds, detail = compile_when(When(**{field: value}))(facts)
            yield ConditionTrace(field, holds, detail)
