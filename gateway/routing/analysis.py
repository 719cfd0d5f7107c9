"""What is odd about a policy whatever it is meant to do: rules without effect, and domains without rule."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway.routing.abstraction import Space
from gateway.routing.assumptions import assume
from gateway.routing.cells import Search
from gateway.routing.formulas import Formula
from gateway.routing.policy import Policy, Rule
from gateway.routing.variables import Trust
from gateway.types import DOMAINS, Decision


class DeadRule(msgspec.Struct, frozen=True):
    """A rule without which the policy would decide every request alike."""

    rule: str
    why: str
    """``unreachable``: its conditions never hold together; ``shadowed``: others come first wherever
    they do; ``banned``: wherever they do and nothing else comes first, its mode is banned."""
    by: tuple[str, ...]
    """The rules that come first, or ban."""


class Gap(msgspec.Struct, frozen=True):
    """A domain that no rule bans or decides by itself, so that ``default`` does."""

    domain: str
    always: bool
    """False: a rule decides where more is true of the request than its domain."""


class Analysis(msgspec.Struct, frozen=True):
    """All of it, in the order of the file and of the domains."""

    dead_rules: tuple[DeadRule, ...]
    gaps: tuple[Gap, ...]
    cells: int


def analyse(policy: Policy) -> Analysis:
    """Look at every cell. Raises ConfigError where there are too many."""
    assumed = assume(policy)
    space = Space((assumed,))
    alive: set[str] = set()
    cells = 0
    search = Search(space, (assumed,))
    for cell in search.cells():
        cells += 1
        decision = search.point(cell).decide(assumed)
        alive.update((decision.rule, *decision.bans.values()))
    dead = (_why(space, assumed, rule) for rule in assumed.rules if rule.id not in alive)
    return Analysis(tuple(filter(None, dead)), tuple(_gaps(space, assumed)), cells)


def _why(space: Space, policy: Policy, rule: Rule) -> DeadRule | None:
    """What happens where the rule's conditions hold; None for limits, which all count."""
    first: dict[str, None] = {}
    banning: dict[str, None] = {}
    reached = False
    for decision in _decisions(space, policy, space.formula(rule.when)):
        reached = True
        if rule.kind == "ban":
            first.update(dict.fromkeys(decision.bans[mode.value] for mode in rule.bans))
        elif rule.decision.mode.value in decision.bans and decision.deny is None:
            banning[decision.bans[rule.decision.mode.value]] = None
        else:
            first[decision.rule] = None
    if not reached:
        return DeadRule(rule.id, "unreachable", ())
    if rule.kind == "limit":
        return None
    if banning:
        return DeadRule(
            rule.id, "banned", (*banning, *(name for name in first if name not in banning))
        )
    return DeadRule(rule.id, "shadowed", tuple(first))


def _decisions(space: Space, policy: Policy, condition: Formula) -> Iterator[Decision]:
    trusted = space.trusts(lambda trust: trust == Trust())
    search = Search(space, (policy,), space.formulas.conjunction((condition, trusted)))
    for cell in search.cells():
        yield search.point(cell).decide(policy)


def _gaps(space: Space, policy: Policy) -> Iterator[Gap]:
    """Each domain by itself: as probable as can be, the others not at all."""
    if not policy.choices:
        return
    choices = {rule.id for _, rule in policy.choices}
    for domain in DOMAINS:
        rules = {decision.rule for decision in _decisions(space, policy, _only(space, domain))}
        if "default" in rules:
            yield Gap(domain, rules.isdisjoint(choices))


def _only(space: Space, domain: str) -> Formula:
    parts = []
    for name, level in space.levels.items():
        highest = len(space.variables[level].values) - 1
        parts.append(space.formulas.literal(level, 1 << (highest if name == domain else 0)))
    if space.top is not None:
        tops = space.variables[space.top].tops
        parts.append(space.formulas.literal(space.top, 1 << tops[domain]))
    return space.formulas.conjunction(parts)
