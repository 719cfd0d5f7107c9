"""Compares two policies over every request there can be, and says where they decide differently."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.routing.abstraction import Space
from gateway.routing.assumptions import assume, readable
from gateway.routing.cells import Search
from gateway.routing.effects import Effect, differences, is_looser
from gateway.routing.point import Point
from gateway.routing.policy import Policy
from gateway.routing.proofs import Counterexample, counterexample
from gateway.routing.regions import Regions
from gateway.routing.statements import WISHES
from gateway.types import Decision, Mode

_Key = tuple[tuple[Effect, ...], tuple[str, str] | None]
"""What changes, and the rules if they do."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Requests for which the second policy does something else, in one and the same way."""

    effects: tuple[Effect, ...]
    looser: bool
    """Whether at least one of the effects is."""
    old_rules: tuple[str, ...]
    new_rules: tuple[str, ...]
    """The same as the old ones: the rules do something else now."""
    where: tuple[str, ...]
    """What all these requests have in common. Others may have it too."""
    requested_modes: tuple[str, ...]
    """What their callers ask for; ``none`` among them: the change needs no wish."""
    example: dict[str, Any]
    """One of them, as a case of a test file."""
    assumes: tuple[str, ...]
    """What the example's text must be, where no such text was found."""
    old: Decision
    new: Decision


class Comparison(msgspec.Struct, frozen=True):
    """All differences between two policies; none: they decide every request alike."""

    changes: tuple[Change, ...]
    cells: int

    @property
    def looser(self) -> bool:
        """Whether any request is decided more loosely than before."""
        return any(change.looser for change in self.changes)


class _Group:
    """Cells that change in the same way."""

    def __init__(self, point: Point, old: Decision, new: Decision) -> None:
        self.point, self.old, self.new = point, old, new
        self.old_rules: dict[str, None] = {}
        self.new_rules: dict[str, None] = {}
        self.cells: dict[int, None] = {}
        self.wishes: dict[Mode | None, None] = {}


def compare(old: Policy, new: Policy) -> Comparison:
    """Look at every cell of both. Raises ConfigError where there are too many."""
    before, after = assume(old), assume(new)
    space = Space((before, after))
    search = Search(space, (before, after))
    groups: dict[_Key, _Group] = {}
    cells = 0
    for cell in search.cells():
        cells += 1
        point = search.point(cell)
        for wish in WISHES:
            wished = msgspec.structs.replace(point, requested_mode=wish)
            was, now = wished.decide(before), wished.decide(after)
            effects = differences(was, now)
            if effects:
                rules = None if was.rule == now.rule else (was.rule, now.rule)
                group = groups.setdefault((effects, rules), _Group(wished, was, now))
                group.old_rules[was.rule] = None
                group.new_rules[now.rule] = None
                group.cells[cell] = None
                group.wishes[wish] = None
    regions = Regions(search)
    changes = [
        _change(regions, effects, group, (old, new)) for (effects, _), group in groups.items()
    ]
    # What callers did not ask for comes first, and of that what is looser.
    changes.sort(key=lambda change: ("none" not in change.requested_modes, not change.looser))
    return Comparison(tuple(changes), cells)


def _change(
    regions: Regions,
    effects: tuple[Effect, ...],
    group: _Group,
    policies: tuple[Policy, Policy],
) -> Change:
    name = f"{group.old.rule} to {group.new.rule}"
    examples: list[Counterexample] = [
        counterexample(name, group.point, policy, decision)
        for policy, decision in zip(policies, (group.old, group.new), strict=True)
    ]
    shown = max(examples, key=lambda example: len(example.assumes))
    return Change(
        effects=effects,
        looser=is_looser(effects),
        old_rules=tuple(group.old_rules),
        new_rules=tuple(group.new_rules),
        where=regions.describe(group.cells),
        requested_modes=tuple(wish.value if wish else "none" for wish in group.wishes),
        example=shown.case,
        assumes=shown.assumes,
        old=readable(group.old),
        new=readable(group.new),
    )
