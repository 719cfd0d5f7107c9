import string
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.decide import decide
from gateway.routing.policy import Policy, parse_policy
from gateway.types import DOMAINS, Caller, ChatRequest, Decision, Message, Mode, Signal, Signals
from tests.policies import plain_yaml

FAST = ("speculative", "hybrid")
few = settings(max_examples=25, deadline=None)
probabilities = st.floats(0, 1, width=16)
words = st.text(string.ascii_letters + " é药\ud800\x00", max_size=20)

leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(
        lambda domain, floor: {"domain": {"is": domain, "min_probability": floor}},
        st.sampled_from(DOMAINS),
        st.sampled_from((0.1, 0.5, 0.9)),
    ),
    st.builds(lambda domain: {"domain": {"is": domain}}, st.sampled_from(DOMAINS)),
    st.builds(lambda flag: {"stream": flag}, st.booleans()),
    st.builds(lambda flag: {"has_context": flag}, st.booleans()),
    st.builds(lambda n: {"n": {"max": n}}, st.integers(0, 3)),
    st.builds(lambda n: {"min_prompt_tokens": n}, st.integers(0, 5)),
    st.just({"keyword": ["a", "药"]}),
    st.just({"regex": "a+b"}),
    st.just({"language": {"is": "fr"}}),
    st.just({"team": {"is": "red"}}),
    st.just({"time": {"between": "09:00-17:00", "weekdays": ["mon", "sun"]}}),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda parts: {"all": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"any": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda part: {"not": part}, inner),
    ),
    max_leaves=4,
)
decides = st.sampled_from(
    (
        {"mode": "standard"},
        {"mode": "speculative", "draft": {"num_speculative_tokens": 3}},
        {"mode": "hybrid", "standard_first": 7},
    )
)
actions = st.one_of(
    st.builds(lambda modes: {"ban": sorted(modes)}, st.sets(st.sampled_from(FAST), min_size=1)),
    st.builds(
        lambda block, free: {"decide": block, "caller_may_choose": free}, decides, st.booleans()
    ),
    st.just({"deny": "refused"}),
)
rule_lists = st.lists(st.builds(lambda when, action: {"when": when, **action}, conditions, actions))
blocks = st.fixed_dictionaries(
    {"default": decides, "on_classifier_error": decides, "on_truncated_input": decides}
)
signals = st.builds(
    Signals,
    items=st.lists(
        st.one_of(
            st.builds(
                Signal, st.just("domain"), st.sampled_from(DOMAINS), probabilities, st.just("t")
            ),
            st.builds(
                Signal,
                st.just("has_context"),
                st.sampled_from(("true", "false")),
                probabilities,
                st.just("t"),
            ),
            st.just(Signal("language", "fr", 1.0, "t")),
            st.just(Signal("domain", "medical", float("nan"), "t")),
        )
    ).map(tuple),
    scored_tokens=st.integers(0, 2),
    total_tokens=st.integers(0, 2),
    error=st.none() | st.just("broken"),
)
requests = st.builds(
    ChatRequest,
    model=words,
    messages=st.lists(st.builds(Message, st.just("user"), words), max_size=3).map(tuple),
    prompt=st.none() | words | st.just((1, 2)),
    n=st.integers(1, 4),
    stream=st.booleans(),
    requested_mode=st.none() | st.sampled_from(Mode),
)
cases = st.fixed_dictionaries(
    {
        "signals": signals,
        "request": requests,
        "caller": st.sampled_from((Caller(), Caller("x", "red", True))),
        "prompt_tokens": st.integers(0, 10),
        "now": st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1))
        | st.just(datetime(2026, 1, 5, tzinfo=UTC)),
    }
)


def policy_of(rules: list[dict[str, Any]], blocks: dict[str, Any]) -> Policy:
    numbered = [{"id": rule.get("id", f"r{i}"), **rule} for i, rule in enumerate(rules)]
    document = {"version": 1, "name": "p", **blocks, "rules": numbered}
    return parse_policy(
        plain_yaml(document), "p.yaml", verifiers=("coupled",), draft_sources=("suffix",)
    )


def essence(decision: Decision) -> Decision:
    """Without the trace and the hash, which name what a file says beside the decision."""
    return msgspec.structs.replace(decision, trace=(), policy_hash="")


@few
@given(rule_lists, blocks, cases)
def test_every_request_gets_one_consistent_decision(
    rules: list[dict[str, Any]], blocks: dict[str, Any], case: dict[str, Any]
) -> None:
    policy = policy_of(rules, blocks)
    decision = decide(policy, **case)

    assert decide(policy, **case) == decision
    assert (decision.draft is None) is (decision.mode is Mode.STANDARD)
    assert decision.mode is Mode.HYBRID or decision.standard_first == 0
    assert [trace.rule for trace in decision.trace[: len(rules)]] == [r.id for r in policy.rules]
    assert len(decision.trace) <= len(rules) + 1


@few
@given(rule_lists, blocks, cases)
def test_a_banned_mode_is_never_decided(
    rules: list[dict[str, Any]], blocks: dict[str, Any], case: dict[str, Any]
) -> None:
    decision = decide(policy_of(rules, blocks), **case)
    kinds = {trace.rule: trace.matched for trace in decision.trace if trace.kind == "ban"}
    banned = {
        mode for i, rule in enumerate(rules) if kinds.get(f"r{i}") for mode in rule.get("ban", ())
    }

    assert set(decision.bans) == banned
    assert decision.mode.value not in banned


@few
@given(rule_lists, blocks, cases, st.sampled_from(FAST), st.data())
def test_a_matching_ban_wins_wherever_it_stands(
    rules: list[dict[str, Any]],
    blocks: dict[str, Any],
    case: dict[str, Any],
    mode: str,
    data: st.DataObject,
) -> None:
    place = data.draw(st.integers(0, len(rules)))
    named = [{"id": f"r{i}", **rule} for i, rule in enumerate(rules)]
    ban = {"id": "extra", "ban": [mode], "when": {"n": {"min": 0}}}
    decision = decide(policy_of([*named[:place], ban, *named[place:]], blocks), **case)

    assert decision.mode.value != mode
    assert mode in decision.bans


@few
@given(rule_lists, blocks, cases, st.data())
def test_the_order_of_bans_changes_nothing(
    rules: list[dict[str, Any]], blocks: dict[str, Any], case: dict[str, Any], data: st.DataObject
) -> None:
    named = [{"id": f"r{i}", **rule} for i, rule in enumerate(rules)]
    bans = [rule for rule in named if "ban" in rule]
    others = [rule for rule in named if "ban" not in rule]
    moved = data.draw(st.permutations(bans))
    first = decide(policy_of([*bans, *others], blocks), **case)
    second = decide(policy_of([*others, *moved], blocks), **case)

    assert set(first.bans) == set(second.bans)
    for field in ("mode", "rule", "draft", "deny", "standard_first", "forced_by", "limits"):
        assert getattr(first, field) == getattr(second, field)


@few
@given(rule_lists, blocks, cases, conditions, decides)
def test_a_lower_rule_never_changes_an_earlier_match(
    rules: list[dict[str, Any]],
    blocks: dict[str, Any],
    case: dict[str, Any],
    when: dict[str, Any],
    block: dict[str, Any],
) -> None:
    before = decide(policy_of(rules, blocks), **case)
    lower = {"id": "lower", "when": when, "decide": block}
    after = decide(policy_of([*rules, lower], blocks), **case)

    # The lower rule may read a signal that no classifier gave: then nothing is trusted any more.
    # A ban that gives the default its name has decided nothing.
    chosen = {step.rule for step in before.trace if step.matched and step.kind != "ban"}
    if before.rule in chosen and after.rule != "on_classifier_error":
        assert essence(before) == essence(after)


@few
@given(rule_lists, blocks, cases)
def test_a_wish_for_standard_is_always_granted(
    rules: list[dict[str, Any]], blocks: dict[str, Any], case: dict[str, Any]
) -> None:
    request = msgspec.structs.replace(case["request"], requested_mode=Mode.STANDARD)
    decision = decide(policy_of(rules, blocks), **{**case, "request": request})

    assert decision.mode is Mode.STANDARD
    assert decision.draft is None


@few
@given(rule_lists, blocks, cases, st.sampled_from(Mode))
def test_a_wish_changes_the_mode_only_where_it_may(
    rules: list[dict[str, Any]], blocks: dict[str, Any], case: dict[str, Any], wish: Mode
) -> None:
    policy = policy_of(rules, blocks)
    free = {rule.id for rule in policy.rules if rule.caller_may_choose}
    plain = decide(
        policy, **{**case, "request": msgspec.structs.replace(case["request"], requested_mode=None)}
    )
    wished = decide(
        policy, **{**case, "request": msgspec.structs.replace(case["request"], requested_mode=wish)}
    )

    if wished.mode is not plain.mode:
        assert wished.forced_by == "header"
        assert wished.mode is wish
        assert wish is Mode.STANDARD or wished.rule in free
        assert wish.value not in wished.bans
    else:
        assert wished.forced_by is None
