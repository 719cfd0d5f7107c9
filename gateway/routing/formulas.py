"""`Formulas`: conditions over variables with finitely many values, each kept once.

A formula is a number in a table. Equal formulas are mostly the same number, so that states of a
search can be compared and merged. Knows nothing of policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Formula = int
FALSE: Formula = 0
TRUE: Formula = 1

_Literal = tuple[int, int]
"""A variable, and the values that it may have, as bits."""


class Formulas:
    """A table of formulas over variables 0, 1, … of the given numbers of values."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._full = [(1 << size) - 1 for size in sizes]
        self._literals: list[_Literal | None] = [None, None]
        self._parts: list[tuple[Formula, ...]] = [(), ()]
        self._is_and: list[bool] = [False, False]
        self._support: list[int] = [0, 0]
        self._known: dict[tuple[object, ...], Formula] = {}
        self._restricted: dict[tuple[Formula, int, int], Formula] = {}

    def literal(self, variable: int, values: int) -> Formula:
        """Holds where the variable has one of the values, which are given as bits."""
        values &= self._full[variable]
        if values in (0, self._full[variable]):
            return TRUE if values else FALSE
        key = (variable, values)
        found = self._known.get(key)
        if found is None:
            found = self._add(key, (), False, 1 << variable, key)
        return found

    def conjunction(self, parts: Iterable[Formula]) -> Formula:
        """Holds where all parts do."""
        return self._join(parts, is_and=True)

    def disjunction(self, parts: Iterable[Formula]) -> Formula:
        """Holds where at least one part does."""
        return self._join(parts, is_and=False)

    def negation(self, formula: Formula) -> Formula:
        """Holds where the formula does not."""
        if formula in (FALSE, TRUE):
            return TRUE - formula
        literal = self._literals[formula]
        if literal is not None:
            return self.literal(literal[0], ~literal[1])
        parts = [self.negation(part) for part in self._parts[formula]]
        return self._join(parts, is_and=not self._is_and[formula])

    def support(self, formula: Formula) -> int:
        """The variables that the formula reads, as bits."""
        return self._support[formula]

    def restrict(self, formula: Formula, variable: int, value: int) -> Formula:
        """The formula where the variable has that value: it does not read the variable any more."""
        if not self._support[formula] >> variable & 1:
            return formula
        literal = self._literals[formula]
        if literal is not None:
            return literal[1] >> value & 1
        key = (formula, variable, value)
        found = self._restricted.get(key)
        if found is None:
            parts = [self.restrict(part, variable, value) for part in self._parts[formula]]
            found = self._restricted[key] = self._join(parts, is_and=self._is_and[formula])
        return found

    def _join(self, parts: Iterable[Formula], *, is_and: bool) -> Formula:
        settles, neutral = (FALSE, TRUE) if is_and else (TRUE, FALSE)
        values: dict[int, int] = {}
        rest: set[Formula] = set()
        for part in self._flat(parts, is_and):
            literal = self._literals[part]
            if literal is None:
                rest.add(part)
                continue
            variable, bits = literal
            before = values.get(variable, self._full[variable] if is_and else 0)
            values[variable] = before & bits if is_and else before | bits
        rest.update(self.literal(variable, bits) for variable, bits in values.items())
        if settles in rest:
            return settles
        rest.discard(neutral)
        if len(rest) < 2:
            return rest.pop() if rest else neutral
        ordered = tuple(sorted(rest))
        key = (is_and, *ordered)
        found = self._known.get((key,))
        if found is None:
            support = 0
            for part in ordered:
                support |= self._support[part]
            found = self._add((key,), ordered, is_and, support, None)
        return found

    def _flat(self, parts: Iterable[Formula], is_and: bool) -> Iterator[Formula]:
        for part in parts:
            if self._parts[part] and self._is_and[part] is is_and:
                yield from self._flat(self._parts[part], is_and)
            else:
                yield part

    def _add(
        self,
        key: tuple[object, ...],
        parts: tuple[Formula, ...],
        is_and: bool,
        support: int,
        literal: _Literal | None,
    ) -> Formula:
        self._literals.append(literal)
        self._parts.append(parts)
        self._is_and.append(is_and)
        self._support.append(support)
        self._known[key] = len(self._parts) - 1
        return len(self._parts) - 1
