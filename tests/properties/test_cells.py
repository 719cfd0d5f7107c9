"""The search over cells against brute force, on random small policies and requests at every edge."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.routing import abstraction, candidates
from gateway.routing.abstraction import TRUST, Space, Trust
from gateway.routing.cases import DEFAULT_NOW
from gateway.routing.cells import AbstractionError, Search
from gateway.routing.facts import Facts
from gateway.routing.point import Point
from gateway.routing.policy import Policy, parse_policy
from gateway.types import Decision

FEW_DOMAINS = ("medical", "code", "general_chat")
SOME_BARS = (0.1, 0.5, 0.7)
BARS = (*SOME_BARS, 1.0)
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Shrinking such policies takes minutes; what is found is readable as it is."""
few = settings(max_examples=40, deadline=None, phases=QUICK)


def on_domains(bars: tuple[float, ...]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.lists(st.sampled_from(FEW_DOMAINS), min_size=1, max_size=2)
    return st.one_of(
        st.builds(
            lambda names, floor: {"domain": {"in": names, "min_probability": floor}},
            names,
            st.sampled_from(bars),
        ),
        st.builds(lambda names: {"domain": {"in": names}}, names),
    )


def nested(leaves: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda parts: {"all": parts}, st.lists(inner, min_size=2, max_size=2)),
            st.builds(lambda parts: {"any": parts}, st.lists(inner, min_size=2, max_size=2)),
            st.builds(lambda part: {"not": part}, inner),
        ),
        max_leaves=3,
    )


leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
    on_domains(BARS),
    st.just({"stream": True}),
    st.builds(lambda n: {"n": {"min": 2, "max": n}}, st.integers(2, 3)),
    st.builds(lambda n: {"max_prompt_tokens": n, "min_prompt_tokens": 1}, st.integers(1, 3)),
    st.just({"language": {"in": ["en", "und"]}}),
    st.builds(lambda name: {"team": {"is": name}}, st.sampled_from(("red", "blue"))),
    st.builds(lambda glob: {"model": {"is": glob}}, st.sampled_from(("a*", "*b", "a?", "[!a]b"))),
    st.builds(
        lambda value: {"header": {"name": "X-Y", "in": value}},
        st.sampled_from((["1"], ["1", "2"])),
    ),
    st.builds(
        lambda span, zone: {
            "time": {"between": span, "timezone": zone, "weekdays": ["mon", "sun"]}
        },
        st.sampled_from(("09:00-17:00", "22:00-06:00")),
        st.just("UTC"),
    ),
)
decides = st.sampled_from(
    (
        {"mode": "standard", "max_tokens": 5},
        {"mode": "speculative"},
        {"mode": "hybrid", "standard_first": 7},
    )
)
limits = st.sampled_from(({"limit": {"max_tokens": 3}}, {"limit": {"max_temperature": 0.5}}))
actions = st.one_of(
    st.builds(
        lambda modes: {"ban": sorted(modes)},
        st.sets(st.sampled_from(("speculative", "hybrid")), min_size=1),
    ),
    st.builds(
        lambda block, free: {"decide": block, "caller_may_choose": free}, decides, st.booleans()
    ),
    st.just({"deny": "refused"}),
    limits,
)


def rule_lists_of(
    conditions: st.SearchStrategy[dict[str, Any]], last_days: tuple[str, ...] = ()
) -> st.SearchStrategy[list[dict[str, Any]]]:
    rules = st.builds(
        lambda when, action, expires: {"when": when, **action, **expires},
        conditions,
        actions,
        st.sampled_from(({}, {}, *({"expires": day} for day in last_days))),
    )
    return st.lists(rules, min_size=1, max_size=4)


conditions = nested(leaves)
rule_lists = rule_lists_of(conditions, ("2026-01-08", "2026-01-10"))
tightening = st.lists(
    st.builds(
        lambda when, action: {"when": when, **action},
        conditions,
        st.one_of(
            st.sampled_from(({"ban": ["speculative"]}, {"ban": ["hybrid"]}, {"deny": "not here"})),
            limits,
        ),
    ),
    min_size=1,
    max_size=2,
)
layers = st.dictionaries(st.sampled_from(("red", "blue")), tightening, max_size=2)
points = st.builds(
    Point,
    missing=st.sampled_from(((), (), ("language",), ("domain",), ("domain", "language"))),
    domains=st.fixed_dictionaries(
        {
            name: st.one_of(
                st.sampled_from(
                    [0.0, *(near for bar in BARS for near in (bar, math.nextafter(bar, 0)))]
                ),
                st.floats(0, 1),
            )
            for name in FEW_DOMAINS
        }
    ),
    top=st.sampled_from((None, *FEW_DOMAINS)),
    language=st.sampled_from(("und", "en", "fr")),
    classifier_error=st.booleans(),
    truncated=st.booleans(),
    stream=st.booleans(),
    n=st.integers(1, 5),
    prompt_tokens=st.integers(0, 5),
    team=st.sampled_from((None, "red", "blue", "green")),
    model=st.sampled_from(("a", "b", "ab", "xb", "ax", "axb", "c", "[!a]b")),
    headers=st.sampled_from(({}, {"x-y": "1"}, {"x-y": "2"}, {"x-y": "3"})),
    now=st.builds(
        lambda hours, minutes: DEFAULT_NOW + timedelta(hours=hours, minutes=minutes),
        st.integers(0, 400),
        st.sampled_from((0, 59)),
    ),
)


Layers = dict[str, list[dict[str, Any]]]
"""Team → the rules that tighten for it."""


def policy_of(rules: list[dict[str, Any]], layers: Layers | None = None) -> Policy:
    def numbered(prefix: str, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"id": f"{prefix}{i}", **rule} for i, rule in enumerate(given)]

    head = {"version": 1, "name": "p"}
    files = {
        "set.yaml": {
            **head,
            "policies": ["p.yaml"],
            "tighten": [f"{t}.yaml" for t in layers or {}],
        },
        "p.yaml": {**head, "rules": numbered("r", rules)},
    }
    for team, tightening in (layers or {}).items():
        audience = {"for": {"team": {"is": team}}}
        files[f"{team}.yaml"] = {**head, **audience, "rules": numbered(team, tightening)}
    return parse_policy(
        _Plain.text(files["set.yaml"]),
        "set.yaml",
        verifiers=("coupled",),
        draft_sources=("suffix",),
        read=lambda path: _Plain.text(files[path.name]),
    )


class _Plain(yaml.SafeDumper):
    """Writes repeated values in full: aliases are refused."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    @classmethod
    def text(cls, document: Any) -> str:
        return yaml.dump(document, Dumper=cls)


def essence(decision: Decision) -> Decision:
    """Without the words for people, which name the values that were seen."""
    return msgspec.structs.replace(decision, trace=(), reason="")


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
