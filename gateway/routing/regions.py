"""What the requests of some cells have in common, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from gateway.routing.assumptions import is_assumption
from gateway.routing.cells import Search
from gateway.routing.conditions import TOP_DOMAIN_PROBABILITY
from gateway.routing.variables import NO_TOP, TRUST, Variable

MAX_SHOWN = 3


class Regions:
    """The cells of a finished search, to be spoken of in groups."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._order = {node: place for place, node in enumerate(_upwards(search))}
        self._parents: dict[int, list[int]] = {}
        for node, each in enumerate(search.nodes):
            for _, child in each.children:
                self._parents.setdefault(child, []).append(node)

    def describe(self, cells: Collection[int]) -> tuple[str, ...]:
        """One condition a variable, which every request of the cells meets; bars come first.

        A request may meet them all and yet be in another cell, when cells depend on several things.
        """
        variables = self._search.space.variables
        bounds = self._bounds(cells)
        return tuple(
            _words(variables[i], bounds[i])
            for i in sorted(bounds, key=lambda i: (variables[i].field != "domain", i == TRUST, i))
            if bounds[i] != (1 << len(variables[i].values)) - 1
            and not (variables[i].field == "top" and self._implied(bounds, bounds[i]))
        )

    def _implied(self, bounds: Mapping[int, int], tops: int) -> bool:
        """Whether the bars alone leave no other domain to be the most probable one."""
        variables = self._search.space.variables
        lows, ends = {NO_TOP: TOP_DOMAIN_PROBABILITY}, {NO_TOP: 1.0}
        for i, bits in bounds.items():
            if variables[i].field == "domain":
                chosen = _chosen(variables[i], bits)
                lows[variables[i].key] = variables[i].values[chosen[0]]
                ends[variables[i].key] = variables[i].upper(chosen[-1]) or math.inf
        highest = max(lows.values())
        if highest > TOP_DOMAIN_PROBABILITY or list(lows.values()).count(highest) > 1:
            ends[NO_TOP] = 0.0
        top = self._search.space.top
        left_out = (name for name, i in variables[top or 0].tops.items() if not tops >> i & 1)
        return all(ends.get(name, math.inf) <= highest for name in left_out)

    def _bounds(self, cells: Collection[int]) -> Mapping[int, int]:
        """Variable → the values, as bits, on the ways to the cells; only those on every way."""
        leads: dict[int, int] = {}
        """Node → the variables on every way from it to one of the cells, as bits."""
        found: dict[int, int] = {}
        always = -1
        for node in sorted(self._above(cells), key=self._order.__getitem__):
            each = self._search.nodes[node]
            leads[node] = 0
            if each.variable >= 0:
                common = -1
                for value, child in each.children:
                    if child in leads:
                        common &= leads[child]
                        found[each.variable] = found.get(each.variable, 0) | 1 << value
                leads[node] = common | 1 << each.variable
            if each.parent is not None and each.parent[0] < 0:
                found[TRUST] = found.get(TRUST, 0) | 1 << each.parent[2]
                always &= leads[node] | 1 << TRUST
        return {variable: bits for variable, bits in found.items() if always >> variable & 1}

    def _above(self, cells: Collection[int]) -> set[int]:
        """The cells and every node that leads to one."""
        above = set(cells)
        queue = list(cells)
        while queue:
            for parent in self._parents.get(queue.pop(), ()):
                if parent not in above:
                    above.add(parent)
                    queue.append(parent)
        return above


def _upwards(search: Search) -> Iterator[int]:
    """Every node, after all that can be reached from it."""
    done: set[int] = set()
    for root in range(len(search.nodes)):
        stack = [(root, False)] if root not in done else []
        while stack:
            node, expanded = stack.pop()
            if expanded:
                yield node
            elif node not in done:
                done.add(node)
                stack.append((node, True))
                stack.extend((child, False) for _, child in search.nodes[node].children)


def _words(variable: Variable, bits: int) -> str:
    chosen = _chosen(variable, bits)
    special: Mapping[str, Callable[[Variable, Sequence[int]], str]] = {
        "trust": _trust,
        "top": _top,
        "domain": _probability,
        "n": _count,
        "prompt_tokens": _count,
        "now": _time,
    }
    return special.get(variable.field, _names)(variable, chosen)


def _chosen(variable: Variable, bits: int) -> list[int]:
    return [i for i in range(len(variable.values)) if bits >> i & 1]


def _trust(variable: Variable, chosen: Sequence[int]) -> str:
    return f"signals {_or([str(variable.values[i]) for i in chosen])}"


def _top(variable: Variable, chosen: Sequence[int]) -> str:
    left_out = [name or "none" for name, i in variable.tops.items() if i not in chosen]
    named = [name or "none" for name, i in variable.tops.items() if i in chosen]
    if len(left_out) < len(named):
        return f"{variable.name} not {_or(left_out)}"
    return f"{variable.name} {_or(named)}"


def _probability(variable: Variable, chosen: Sequence[int]) -> str:
    """Runs of classes, each from its lowest bar up to the next bar that is not in it."""
    parts = []
    for first, last in _runs(chosen):
        low, end = variable.values[first], variable.upper(last)
        upto = "" if end is None else f"up to {end:g}" if first else f"below {end:g}"
        parts.append(" ".join(filter(None, (f"from {low:g}" if first else "", upto))))
    return f"{variable.key} {_or(parts)}"


def _count(variable: Variable, chosen: Sequence[int]) -> str:
    ordered = sorted(number for alike in variable.members for number in alike)
    inside = {number for i in chosen for number in variable.members[i]}
    places = [i for i, number in enumerate(ordered) if number in inside]
    parts = []
    for first, last in _runs(places):
        low, high = ordered[first], ordered[last]
        if last == len(ordered) - 1:
            parts.append(f"from {low}")
        else:
            parts.append(str(low) if low == high else f"{low} to {high}")
    return f"{variable.name} {_or(parts)}"


def _time(variable: Variable, chosen: Sequence[int]) -> str:
    shown = [f"{variable.values[i]:%a %H:%M} UTC" for i in chosen[:MAX_SHOWN]]
    return f"{variable.name} such as {_or(shown)}"


def _names(variable: Variable, chosen: Sequence[int]) -> str:
    """The first class holds what no condition names, so it is told by what is not in it."""
    if variable.field == "header" and is_assumption(variable.key):
        return f"{'' if 1 in chosen else 'no '}{variable.name}"
    name = variable.name
    if name == "model":
        return f"model such as {_or([variable.values[i] for i in chosen[:MAX_SHOWN]])}"
    others = [i for i in range(len(variable.values)) if i not in chosen]
    if isinstance(variable.values[0], bool):
        return f"{name} {_or([_shown(variable.values[i]) for i in chosen])}"
    if 0 in chosen and others:
        return f"{name} not {_or(_listed(variable, others))}"
    return f"{name} {_or(_listed(variable, chosen))}"


def _listed(variable: Variable, chosen: Sequence[int]) -> list[str]:
    return [_shown(member) for i in chosen for member in variable.members[i]]


def _shown(value: Any) -> str:
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Unbroken runs, each as its first and last place."""
    first = last = places[0]
    for place in places[1:]:
        if place != last + 1:
            yield first, last
            first = place
        last = place
    yield first, last


def _or(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
