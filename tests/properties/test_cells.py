"""The search over cells against brute force, on random small policies and requests at every edge."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing import abstraction, candidates
from gateway.routing.abstraction import Space
from gateway.routing.cells import AbstractionError, Search
from gateway.routing.facts import Facts
from gateway.routing.point import Point
from gateway.routing.policy import Policy
from gateway.routing.variables import TRUST, Trust
from gateway.types import Decision
from tests.policies import (
    FEW_DOMAINS,
    QUICK,
    SOME_BARS,
    Layers,
    essence,
    layers,
    nested,
    on_domains,
    points,
    policy_of,
    rule_lists,
    rule_lists_of,
)

few = settings(max_examples=30, deadline=None, phases=QUICK)


def searched(policy: Policy) -> tuple[Search, dict[int, Point]]:
    search = Search(Space((policy,)), (policy,))
    return search, {cell: search.point(cell) for cell in search.cells()}


def cell_of(search: Search, point: Point) -> int:
    """The cell that a request is in, by the answers of the conditions that the search asks for."""
    facts: Facts = point.facts()
    (policy,) = search.policies
    read = {name for layer in policy.layers for name in layer.signals_read}
    # What only the other rules read is missed like a failed classifier.
    error = point.classifier_error or bool(policy.signals_read.intersection(point.missing) - read)
    missing = tuple(name for name in point.missing if name in read)
    trust = Trust(error, point.truncated and not error, missing)
    root = search.space.variables[TRUST].values.index(trust)
    node = next(i for i, each in enumerate(search.nodes) if each.parent == (-1, TRUST, root))
    while (variable := search.nodes[node].variable) >= 0:
        value = search.space.variables[variable].value_of(facts)
        node = dict(search.nodes[node].children)[value]
    return node


@few
@given(rule_lists, layers, st.lists(points, min_size=20, max_size=20))
def test_every_request_is_in_a_cell_and_decided_like_the_one_out_of_it(
    rules: list[dict[str, Any]], layers: Layers, requests: list[Point]
) -> None:
    policy = policy_of(rules, layers)
    search, cells = searched(policy)

    for point in requests:
        like = cells[cell_of(search, point)]
        assert essence(point.decide(policy)) == essence(like.decide(policy))


def grid() -> Iterator[Point]:
    """Both sides of every bar, in every combination for three domains and one of the others."""
    edges = (0.0, *(near for bar in SOME_BARS for near in (math.nextafter(bar, 0), bar)), 1.0)
    names = (*FEW_DOMAINS, "finance")
    for scores in itertools.product(edges, repeat=len(names)):
        yield Point(domains=dict(zip(names, scores, strict=True)))


@settings(max_examples=5, deadline=None, phases=QUICK)
@given(rule_lists_of(nested(on_domains(SOME_BARS))))
def test_brute_force_over_both_sides_of_all_bars_finds_the_same_decisions(
    rules: list[dict[str, Any]],
) -> None:
    policy = policy_of(rules)
    _, cells = searched(policy)
    trusted = [p for p in cells.values() if not p.classifier_error and not p.truncated]

    assert set(map(str, decisions(policy, trusted))) == set(map(str, decisions(policy, grid())))


def decisions(policy: Policy, requests: Iterable[Point]) -> Iterator[Decision]:
    return (essence(point.decide(policy)) for point in requests)


BARRED = [{"when": {"domain": {"is": "medical", "min_probability": 0.5}}, "deny": "refused"}]


def just_below(leaves: Any) -> Iterator[float]:
    yield 0.0
    yield math.nextafter(0.5, 0)


@pytest.mark.parametrize("fault", [just_below, lambda leaves: iter((0.0,))])
def test_a_bar_whose_upper_side_is_forgotten_is_noticed(
    monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    check = test_every_request_is_in_a_cell_and_decided_like_the_one_out_of_it
    inner: Callable[..., None] = check.hypothesis.inner_test  # type: ignore[attr-defined]
    requests = [Point(domains={"medical": score}) for score in (0.0, 0.5)]
    inner(BARRED, {}, requests)

    monkeypatch.setitem(candidates._MAKERS, "domain", fault)
    with pytest.raises((KeyError, AssertionError)):
        inner(BARRED, {}, requests)


def test_a_request_out_of_another_cell_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The point that stands for a class must be in it: here it is always the lowest one."""
    policy = policy_of(BARRED)
    sound = Space.point
    monkeypatch.setattr(Space, "point", lambda self, chosen: sound(self, dict.fromkeys(chosen, 0)))

    with pytest.raises(AbstractionError):
        searched(policy)


def test_a_wrong_formula_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`decide` itself is asked about every cell, so the search cannot have its own idea of it."""
    policy = policy_of([{"when": {"not": {"stream": True}}, "deny": "refused"}])
    monkeypatch.setattr(abstraction.Formulas, "negation", lambda self, formula: formula)

    with pytest.raises(AbstractionError, match="decides"):
        searched(policy)
