"""`Search`: every cell of requests that policies decide alike, each with one request out of it.

It branches on one variable after the other, but only on those that still matter to what is open,
and states in which the same is open are searched once. So it visits every cell without listing
every combination. What a cell is decided, `decide` itself says, on the request out of it; the
search only picks that request, and stops with an error if `decide` took another way than it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from gateway.errors import ConfigError, Problem
from gateway.routing.abstraction import Space
from gateway.routing.conditions import TOP_DOMAIN_PROBABILITY
from gateway.routing.formulas import FALSE, TRUE, Formula
from gateway.routing.outline import Outline, State
from gateway.routing.point import Point
from gateway.routing.policy import Policy
from gateway.routing.variables import TRUST, Trust

MAX_STATES = 120_000
"""Some 15 seconds of searching."""


class AbstractionError(Exception):
    """The search and `decide` took different ways: a bug here, never a property of a policy."""


class Node(msgspec.Struct):
    """One state of the search."""

    variable: int
    """What is branched on; -1: nothing is open any more."""
    parent: tuple[int, int, int] | None
    """Whence it was reached first: node, variable, value."""
    children: list[tuple[int, int]] = []
    """Value → node."""


class _Open(msgspec.Struct, frozen=True):
    """All that is open in one state; equal ones lead to the same cells."""

    trust: int
    pending: int
    """The level of the most probable domain if it is to be settled next, else -1."""
    limits: tuple[tuple[int, int], ...]
    """What the most probable domain leaves to the others: variable → values as bits."""
    condition: Formula
    states: tuple[State, ...]


class Search:
    """The cells of a condition under some policies, found one by one; see `cells`."""

    def __init__(self, space: Space, policies: Sequence[Policy], condition: Formula = TRUE) -> None:
        self.space = space
        self.nodes: list[Node] = []
        self.policies = policies
        self._outlines = [Outline(policy, space) for policy in policies]
        self._condition = space.formulas.conjunction((condition, space.certain))
        self._ranks = {variable: rank for rank, variable in enumerate(self._order())}
        self._found: dict[_Open, int] = {}
        self._queue: list[_Open] = []

    def cells(self) -> Iterator[int]:
        """The nodes at which all is settled, of trusted signals and few variables first.

        Raises ConfigError where there are too many states, AbstractionError for a bug.
        """
        done = 0
        for trust in range(len(self.space.variables[TRUST].values)):
            self._start(trust)
            while done < len(self._queue):
                yield from self._expand(done)
                done += 1
                if len(self._queue) > MAX_STATES:
                    raise self._too_large()

    def assignment(self, node: int) -> dict[int, int]:
        """Variable → value on the way by which the node was reached first."""
        found: dict[int, int] = {}
        parent = self.nodes[node].parent
        while parent is not None:
            node, variable, value = parent
            found[variable] = value
            parent = self.nodes[node].parent if node >= 0 else None
        return found

    def point(self, node: int) -> Point:
        """The request out of a cell. Raises AbstractionError if it is not in it."""
        assignment = self.assignment(node)
        point = self.space.point(assignment)
        facts = point.facts()
        for variable, value in assignment.items():
            if variable != TRUST and self.space.variables[variable].value_of(facts) != value:
                name = self.space.variables[variable].name
                raise AbstractionError(f"{point} is not in class {value} of {name}")
        for policy, outline, state in zip(
            self.policies, self._outlines, self._queue[node].states, strict=True
        ):
            rule, bans = outline.result(
                state, self.space.variables[TRUST].values[assignment[TRUST]]
            )
            decision = point.decide(policy)
            if (decision.rule, dict(decision.bans)) != (rule, bans):
                raise AbstractionError(
                    f"{policy.path}: {rule} was found for {point}, but {decision.rule} decides"
                )
        return point

    def _order(self) -> list[int]:
        """The most probable domain first, then variables as the policies come to read them."""
        seen = dict.fromkeys(
            ([] if self.space.top is None else [self.space.top])
            + [i for outline in self._outlines for i in outline.variables]
        )
        return list(seen) + [i for i in range(len(self.space.variables)) if i not in seen]

    def _start(self, value: int) -> None:
        trust: Trust = self.space.variables[TRUST].values[value]
        condition = self.space.formulas.restrict(self._condition, TRUST, value)
        states = [outline.start(trust) for outline in self._outlines]
        for variable in self.space.without(trust):
            condition = self.space.formulas.restrict(condition, variable, 0)
            states = [
                outline.restrict(state, variable, 0)
                for outline, state in zip(self._outlines, states, strict=True)
            ]
        self._reach(_Open(value, -1, (), condition, tuple(states)), (-1, TRUST, value))

    def _reach(self, state: _Open, parent: tuple[int, int, int]) -> int:
        if state.condition == FALSE:
            return -1
        found = self._found.get(state)
        if found is None:
            found = self._found[state] = len(self._queue)
            self._queue.append(state)
            self.nodes.append(Node(-1, parent, []))
        return found

    def _support(self, state: _Open) -> int:
        support = self.space.formulas.support(state.condition)
        for outline, each in zip(self._outlines, state.states, strict=True):
            support |= outline.support(each)
        return support

    def _expand(self, number: int) -> Iterator[int]:
        """Branch on the next variable, or yield the node if nothing is open."""
        state, node = self._queue[number], self.nodes[number]
        support = self._support(state)
        if not support:
            yield number
            return
        if state.pending >= 0:
            variable = state.pending
        else:
            variable = min(_bits(support), key=self._ranks.__getitem__)
        node.variable = variable
        allowed = dict(state.limits).get(variable, -1)
        for value in range(len(self.space.variables[variable].values)):
            if allowed >> value & 1:
                child = self._reach(self._after(state, variable, value), (number, variable, value))
                if child >= 0:
                    node.children.append((value, child))

    def _after(self, state: _Open, variable: int, value: int) -> _Open:
        formulas = self.space.formulas
        after = _Open(
            state.trust,
            -1,
            state.limits,
            formulas.restrict(state.condition, variable, value),
            tuple(
                outline.restrict(each, variable, value)
                for outline, each in zip(self._outlines, state.states, strict=True)
            ),
        )
        support = self._support(after)
        if variable == self.space.top:
            level = self.space.levels.get(self.space.variables[variable].values[value], -1)
            if level >= 0 and support >> level & 1:
                return msgspec.structs.replace(
                    after, pending=level, limits=((level, self._high_enough(level)),)
                )
            bound = TOP_DOMAIN_PROBABILITY if value == 0 else None
        elif variable == state.pending:
            bound = self.space.variables[variable].upper(value)
        else:
            limits = tuple(limit for limit in state.limits if support >> limit[0] & 1)
            return msgspec.structs.replace(after, limits=limits)
        return msgspec.structs.replace(after, limits=self._below(bound, support))

    def _high_enough(self, level: int) -> int:
        """The classes of a domain in which it may be the most probable one, as bits."""
        variable = self.space.variables[level]
        bits = 0
        for value in range(len(variable.values)):
            upper = variable.upper(value)
            if upper is None or upper > TOP_DOMAIN_PROBABILITY:
                bits |= 1 << value
        return bits

    def _below(self, bound: float | None, support: int) -> tuple[tuple[int, int], ...]:
        """The classes of open domains that begin below a bound, where those are not all."""
        if bound is None:
            return ()
        limits = []
        for level in self.space.levels.values():
            values = self.space.variables[level].values
            below = sum(low < bound for low in values)
            if support >> level & 1 and below < len(values):
                limits.append((level, (1 << below) - 1))
        return tuple(limits)

    def _too_large(self) -> ConfigError:
        branched = Counter(node.variable for node in self.nodes if node.variable >= 0)
        variables = (self.space.variables[i] for i, _ in branched.most_common(3))
        named = ", ".join(f"{each.name} ({len(each.values)} kinds)" for each in variables)
        return ConfigError(
            [
                Problem(
                    f"too large to prove: more than {MAX_STATES:,} states, most of them by {named}",
                    path=" and ".join(policy.path for policy in self.policies),
                    hint="let rules share bars, or conditions read fewer things together",
                )
            ]
        )


def _bits(support: int) -> Iterator[int]:
    while support:
        low = support & -support
        yield low.bit_length() - 1
        support ^= low
