"""`Space`: the finitely many kinds of requests that some conditions can tell apart.

A variable stands for what conditions read in one place: a domain's probability, the caller, the
hour. Its values are classes of all that those conditions answer alike, each with a representative;
which class something is in, the conditions themselves say, compiled as for a request. So a domain
has a class below its lowest bar and one from each bar up to the next, whose lowest point is the bar.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import msgspec

from gateway.errors import ConfigError, Problem
from gateway.routing.assumptions import read
from gateway.routing.candidates import candidates, moments
from gateway.routing.conditions import TOP_DOMAIN_PROBABILITY, Test, compile_when
from gateway.routing.formulas import FALSE, TRUE, Formula, Formulas
from gateway.routing.globs import TooManyPatterns
from gateway.routing.point import Point
from gateway.routing.policy import Policy
from gateway.routing.variables import NO_TOP, TRUST, Trust, Variable
from gateway.routing.when import DomainTest, When
from gateway.types import DOMAINS

_Leaf = When | date
"""A condition that reads one place; a day: that it is over."""
_Place = tuple[str, str]
"""A field of `Point`, and the domain or header in it."""
_TOP: _Place = ("top", "")
_FIELDS = {
    "min_prompt_tokens": "prompt_tokens",
    "max_prompt_tokens": "prompt_tokens",
    "time": "now",
}


class Space:
    """All variables of some conditions, and the formulas of these over them."""

    def __init__(self, policies: Sequence[Policy], *conditions: When | None) -> None:
        leaves: dict[_Place, dict[_Leaf, None]] = {}
        for leaf in _all_leaves(policies, conditions):
            leaves.setdefault(_place(leaf), {})[leaf] = None
        self.variables = [Variable("trust", "", tuple(_trusts(policies)))]
        self._bits: dict[_Leaf, tuple[int, int]] = {}
        barred = [key for field, key in leaves if field == "domain"]
        if _TOP in leaves:
            self._add_top(tuple(leaves.pop(_TOP)), barred)
        for (field, key), found in leaves.items():
            try:
                self._add(field, key, tuple(found))
            except TooManyPatterns as error:
                path = " and ".join(policy.path for policy in policies)
                hint = "use fewer wildcards in `model` conditions"
                raise ConfigError([Problem(str(error), path=path, hint=hint)]) from None
        self.levels = {
            variable.key: i
            for i, variable in enumerate(self.variables)
            if variable.field == "domain"
        }
        """Domain → the variable that is its probability, where a condition has a bar for it."""
        self.top = next((i for i, each in enumerate(self.variables) if each.field == "top"), None)
        """The variable that is the most probable domain, where a condition reads it."""
        self.formulas = Formulas([len(variable.values) for variable in self.variables])
        self.certain = self.formulas.conjunction(self._implications())
        """Holds for every request there can be."""

    def formula(self, condition: When | None) -> Formula:
        """A condition as a formula. It must be one of those that the space was made for."""
        if condition is None:
            return TRUE
        parts: list[Formula] = []
        for field in condition.__struct_fields__:
            value = getattr(condition, field)
            if value is None:
                continue
            if field == "all_":
                parts.extend(map(self.formula, value))
            elif field == "any_":
                parts.append(self.formulas.disjunction(map(self.formula, value)))
            elif field == "not_":
                parts.append(self.formulas.negation(self.formula(value)))
            else:
                literals = (
                    self.formulas.literal(*self._bits[leaf]) for leaf in _split(field, value)
                )
                parts.append(self.formulas.disjunction(literals))
        return self.formulas.conjunction(parts)

    def expired(self, last_day: date | None) -> Formula:
        """Holds after the last day of a rule."""
        return FALSE if last_day is None else self.formulas.literal(*self._bits[last_day])

    def trusts(self, wanted: Callable[[Trust], bool]) -> Formula:
        """Holds where the signals are trusted in one of the wanted ways."""
        values = self.variables[TRUST].values
        bits = sum(1 << i for i, trust in enumerate(values) if wanted(trust))
        return self.formulas.literal(TRUST, bits)

    def without(self, trust: Trust) -> Iterator[int]:
        """The variables that have their first value because their signal is missing."""
        for i, variable in enumerate(self.variables):
            signal = "domain" if variable.field == "top" else variable.field
            if signal in trust.missing:
                yield i

    def point(self, assignment: Mapping[int, int]) -> Point:
        """A request that has these values of variables; in all else it is as plain as can be."""
        domains: dict[str, float] = {}
        headers: dict[str, str] = {}
        changes: dict[str, Any] = {}
        for i, value in assignment.items():
            variable = self.variables[i]
            chosen = variable.values[value]
            if variable.field == "domain":
                domains[variable.key] = chosen
            elif variable.field == "header" and chosen is not None:
                headers[variable.key] = chosen
            elif variable.field == "trust":
                changes |= msgspec.structs.asdict(chosen)
            elif variable.field != "header" and chosen != NO_TOP:
                changes[variable.field] = chosen
        top = changes.get("top")
        if top is not None:
            level = self.levels.get(top, -1)
            end = None
            if level in assignment:
                end = self.variables[level].upper(assignment[level])
            domains[top] = _above(domains, top, end)
        return Point(domains=domains, headers=headers, **changes)

    def _implications(self) -> Iterator[Formula]:
        """A text with the words of one condition has those of every condition that lists them too."""
        found = [
            (i, assumption)
            for i, variable in enumerate(self.variables)
            if variable.field == "header"
            for assumption in read((variable.key,))
        ]
        for (i, one), (j, other) in itertools.permutations(found, 2):
            if one.implies(other):
                # A reserved header is missing, or there.
                parts = self.formulas.literal(i, 0b01), self.formulas.literal(j, 0b10)
                yield self.formulas.disjunction(parts)

    def _add_top(self, leaves: tuple[_Leaf, ...], barred: Collection[str]) -> None:
        tests = tuple(map(_test, leaves))
        tops, values, classes = {NO_TOP: 0}, [NO_TOP], {}
        for domain in DOMAINS:
            facts = Point(domains={domain: 1.0}).facts()
            answers = tuple(test(facts)[0] for test in tests)
            # Domains without a bar are alike if the conditions say so; the others stand in the
            # way of each other.
            own = (answers, domain if domain in barred else "")
            if own not in classes:
                classes[own] = len(values)
                values.append(domain)
            tops[domain] = classes[own]
        for i, leaf in enumerate(leaves):
            bits = sum(1 << value for (answers, _), value in classes.items() if answers[i])
            self._bits[leaf] = (len(self.variables), bits)
        self.variables.append(Variable(*_TOP, tuple(values), tops=tops))

    def _add(self, field: str, key: str, leaves: tuple[_Leaf, ...]) -> None:
        tests = tuple(map(_test, leaves))
        classes: dict[tuple[bool, ...], int] = {}
        members: list[list[Any]] = []
        for candidate in dict.fromkeys(_candidates(field, leaves)):
            facts = _alone(field, key, candidate).facts()
            answers = tuple(test(facts)[0] for test in tests)
            if answers not in classes:
                classes[answers] = len(members)
                members.append([])
            members[classes[answers]].append(candidate)
        values = tuple(alike[0] for alike in members)
        for i, leaf in enumerate(leaves):
            bits = sum(1 << value for answers, value in classes.items() if answers[i])
            self._bits[leaf] = (len(self.variables), bits)
        self.variables.append(
            Variable(field, key, values, tuple(map(tuple, members)), tests, classes)
        )


def _trusts(policies: Sequence[Policy]) -> Iterator[Trust]:
    """Where a layer reads signals, it matters which of them are missing, for a signal that only
    other rules read leaves a layer without doubt; else it is as if a classifier had failed."""
    names: list[str] = []
    if any(layer.signals_read for policy in policies for layer in policy.layers):
        read = {name for policy in policies for name in policy.signals_read}
        read |= {
            name for policy in policies for each in policy.layers for name in each.signals_read
        }
        names = sorted(read)
    for count in range(len(names) + 1):
        for missing in itertools.combinations(names, count):
            for truncated, error in itertools.product((False, True), repeat=2):
                yield Trust(error, truncated, missing)


def _all_leaves(policies: Sequence[Policy], conditions: Sequence[When | None]) -> Iterator[_Leaf]:
    for policy in policies:
        for rule in policy.rules:
            yield from _leaves(rule.when)
            if rule.kind == "decide" and rule.expires is not None:
                yield rule.expires
        for layer in policy.layers:
            yield from _leaves(layer.when)
    for condition in conditions:
        yield from _leaves(condition)


def _test(leaf: _Leaf) -> Test:
    if isinstance(leaf, When):
        return compile_when(leaf)
    return lambda facts: (facts.today > leaf, "")


def _candidates(field: str, leaves: tuple[_Leaf, ...]) -> Iterator[Any]:
    conditions = [leaf for leaf in leaves if isinstance(leaf, When)]
    if field == "now":
        return moments(conditions, {leaf for leaf in leaves if not isinstance(leaf, When)})
    return candidates(field, conditions)


def _leaves(condition: When | None) -> Iterator[When]:
    """The conditions in it that read one place each."""
    if condition is None:
        return
    for field in condition.__struct_fields__:
        value = getattr(condition, field)
        if value is None:
            continue
        if field in ("all_", "any_"):
            for inner in value:
                yield from _leaves(inner)
        elif field == "not_":
            yield from _leaves(value)
        else:
            yield from _split(field, value)


def _split(field: str, value: Any) -> Iterator[When]:
    """One condition; a bar for any of several domains is a bar for each."""
    if isinstance(value, DomainTest) and value.min_probability is not None:
        for domain in value.values:
            yield When(domain=DomainTest(is_=domain, min_probability=value.min_probability))
    else:
        yield When(**{field: value})


def _place(leaf: _Leaf) -> _Place:
    if not isinstance(leaf, When):
        return "now", ""
    if leaf.domain is not None:
        return _TOP if leaf.domain.min_probability is None else ("domain", leaf.domain.values[0])
    if leaf.header is not None:
        return "header", leaf.header.name.lower()
    field = next(name for name in leaf.__struct_fields__ if getattr(leaf, name) is not None)
    return _FIELDS.get(field, field), ""


def _alone(field: str, key: str, value: Any) -> Point:
    if field == "domain":
        return Point(domains={key: value})
    if field == "header":
        return Point(headers={} if value is None else {key: value})
    return Point(**{field: value})


def _above(domains: Mapping[str, float], top: str, end: float | None) -> float:
    """A probability for the most probable domain: above the others, and below the end of its class.

    Where only the lowest such number will do, it may be equal to another's.
    """
    others = max((value for name, value in domains.items() if name != top), default=0.0)
    least = max(domains.get(top, 0.0), TOP_DOMAIN_PROBABILITY, others)
    if least > others:
        return least
    for digits in range(1, 16):
        more = round(least + 10.0**-digits, digits)
        if least < more and (more < end if end is not None else more <= 1):
            return more
    return least
