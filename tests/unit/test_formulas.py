"""Formulas over finite variables against plain evaluation."""

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.formulas import FALSE, TRUE, Formulas

SIZES = (2, 3, 4)
literals = st.integers(0, 2).flatmap(
    lambda variable: st.tuples(
        st.just("literal"), st.just(variable), st.integers(0, (1 << SIZES[variable]) - 1)
    )
)
trees: st.SearchStrategy[Any] = st.recursive(
    literals,
    lambda inner: st.one_of(
        st.tuples(st.just("and"), st.lists(inner, max_size=3)),
        st.tuples(st.just("or"), st.lists(inner, max_size=3)),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=8,
)


def build(table: Formulas, tree: Any) -> int:
    kind, *rest = tree
    if kind == "literal":
        return table.literal(*rest)
    if kind == "not":
        return table.negation(build(table, rest[0]))
    join = table.conjunction if kind == "and" else table.disjunction
    return join(build(table, part) for part in rest[0])


def holds(tree: Any, values: tuple[int, ...]) -> bool:
    kind, *rest = tree
    if kind == "literal":
        return bool(rest[1] >> values[rest[0]] & 1)
    if kind == "not":
        return not holds(rest[0], values)
    return (all if kind == "and" else any)(holds(part, values) for part in rest[0])


@settings(max_examples=200, deadline=None)
@given(trees, st.permutations(range(len(SIZES))))
def test_restricting_every_variable_evaluates_the_formula(tree: Any, order: list[int]) -> None:
    table = Formulas(SIZES)
    formula = build(table, tree)
    for values in itertools.product(*map(range, SIZES)):
        left = formula
        for variable in order:
            left = table.restrict(left, variable, values[variable])
            assert not table.support(left) >> variable & 1
        assert left == (TRUE if holds(tree, values) else FALSE)


def test_equal_formulas_are_one() -> None:
    table = Formulas(SIZES)
    a, b = table.literal(0, 1), table.literal(1, 5)

    assert table.conjunction((a, b)) == table.conjunction((b, a, TRUE))
    assert table.disjunction((a, table.negation(a))) == TRUE
    assert table.conjunction((b, table.literal(1, 2))) == FALSE
    assert table.negation(table.negation(table.disjunction((a, b)))) == table.disjunction((a, b))
