"""Random small policies, and requests at every edge of theirs."""

import math
from datetime import timedelta
from typing import Any

import msgspec
import yaml
from hypothesis import Phase
from hypothesis import strategies as st

from gateway.routing.cases import DEFAULT_NOW
from gateway.routing.point import Point
from gateway.routing.policy import Policy, parse_policy
from gateway.types import Decision

FEW_DOMAINS = ("medical", "code", "general_chat")
SOME_BARS = (0.1, 0.5, 0.7)
BARS = (*SOME_BARS, 1.0)
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Shrinking such policies takes minutes; what is found is readable as it is."""


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
        st.sampled_from(("UTC", "UTC", "Europe/Berlin")),
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
        plain_yaml(files["set.yaml"]),
        "set.yaml",
        verifiers=("coupled",),
        draft_sources=("suffix",),
        read=lambda path: plain_yaml(files[path.name]),
    )


class _Plain(yaml.SafeDumper):
    """Writes repeated values in full: aliases are refused."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def plain_yaml(document: Any) -> str:
    return yaml.dump(document, Dumper=_Plain)


def essence(decision: Decision) -> Decision:
    """Without the words for people, which name the values that were seen."""
    return msgspec.structs.replace(decision, trace=(), reason="")
