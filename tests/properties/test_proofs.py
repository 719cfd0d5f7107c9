"""Proofs and comparisons against many concrete requests, on random small policies."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.comparison import compare
from gateway.routing.conditions import compile_when
from gateway.routing.effects import differences
from gateway.routing.point import Point
from gateway.routing.proofs import prove
from gateway.routing.statements import Never, Statement
from gateway.routing.when import When
from gateway.types import Mode
from tests.policies import QUICK, Layers, conditions, layers, points, policy_of, rule_lists

few = settings(max_examples=15, deadline=None, phases=QUICK)
requests = st.lists(
    st.builds(
        lambda point, wish: msgspec.structs.replace(point, requested_mode=wish),
        points,
        st.sampled_from((None, *Mode)),
    ),
    min_size=20,
    max_size=20,
)
modes = st.sampled_from(((Mode.STANDARD,), (Mode.SPECULATIVE,), (Mode.SPECULATIVE, Mode.HYBRID)))


@few
@given(rule_lists, layers, conditions, modes, requests)
def test_what_is_proved_holds_for_every_request_and_a_counterexample_is_one(
    rules: list[dict[str, Any]],
    layers: Layers,
    when: dict[str, Any],
    modes: tuple[Mode, ...],
    requests: list[Point],
) -> None:
    policy = policy_of(rules, layers)
    condition = msgspec.convert(when, When)
    verdict = prove(policy, Statement(name="s", never=Never(when=condition, mode=modes)))

    meant = [point for point in requests if compile_when(condition)(point.facts())[0]]
    if verdict.proved:
        assert not any(point.decide(policy).mode in modes for point in meant)
    elif verdict.vacuous:
        assert not meant
    else:
        assert verdict.counterexample is not None
        assert verdict.counterexample.decision.mode in modes


@few
@given(rule_lists, rule_lists, layers, requests)
def test_a_comparison_is_empty_exactly_if_both_decide_alike(
    old_rules: list[dict[str, Any]],
    new_rules: list[dict[str, Any]],
    layers: Layers,
    requests: list[Point],
) -> None:
    old, new = policy_of(old_rules, layers), policy_of(new_rules)
    changes = {change.effects: change for change in compare(old, new).changes}

    for point in requests:
        effects = differences(point.decide(old), point.decide(new))
        assert not effects or effects in changes
    for effects, change in changes.items():
        assert differences(change.old, change.new) == effects
    back = {
        tuple(sorted((effect.what, effect.new, effect.old) for effect in change.effects))
        for change in compare(new, old).changes
    }
    assert back == {
        tuple(sorted((effect.what, effect.old, effect.new) for effect in effects))
        for effects in changes
    }


@few
@given(rule_lists, layers)
def test_a_policy_is_no_different_from_itself(rules: list[dict[str, Any]], layers: Layers) -> None:
    policy = policy_of(rules, layers)

    assert compare(policy, policy).changes == ()
