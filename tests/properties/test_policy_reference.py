"""`decide` against a second reading of the same policy, as plain as can be: no compiling, no trace.

The reference reads the YAML's own dictionaries. Where the two part, one of them is wrong.
"""

import re
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.decide import decide
from gateway.routing.policy import Policy, parse_policy
from gateway.types import Caller, ChatRequest, Mode, Signals
from tests.policies import plain_yaml
from tests.properties.test_decide import (
    actions,
    blocks,
    cases,
    conditions,
    few,
    rule_lists,
)

Case = dict[str, Any]
Rules = list[dict[str, Any]]


def scores(signals: Signals, name: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in signals.items:
        if item.name == name and item.score == item.score:
            found[item.value] = max(found.get(item.value, -1.0), item.score)
    return found


def top(signals: Signals, name: str) -> str:
    values = scores(signals, name)
    return max(values, key=lambda value: values[value]) if values else ""


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9_é]+|药", text.lower())


def holds(when: dict[str, Any], case: Case) -> bool:
    return all(condition(name, wanted, case) for name, wanted in when.items())


def condition(name: str, wanted: Any, case: Case) -> bool:
    signals: Signals = case["signals"]
    request: ChatRequest = case["request"]
    now = case["now"]
    text = "\n".join(request.texts())
    if name == "domain":
        probability = scores(signals, "domain").get(wanted["is"], 0.0)
        if "min_probability" in wanted:
            return bool(probability >= wanted["min_probability"])
        return top(signals, "domain") == wanted["is"] and probability >= 0.5
    plain = {
        "stream": lambda: request.stream is wanted,
        "has_context": lambda: (top(signals, "has_context") == "true") is wanted,
        "n": lambda: wanted.get("min", 0) <= request.n <= wanted.get("max", 99),
        "min_prompt_tokens": lambda: case["prompt_tokens"] >= wanted,
        "keyword": lambda: any(word in words(text) for word in wanted),
        "regex": lambda: re.search(wanted, text) is not None,
        "language": lambda: top(signals, "language") == wanted["is"],
        "team": lambda: case["caller"].team == wanted["is"],
        "time": lambda: 9 <= now.hour < 17 and now.weekday() in (0, 6),
        "all": lambda: all(holds(part, case) for part in wanted),
        "any": lambda: any(holds(part, case) for part in wanted),
        "not": lambda: not holds(wanted, case),
    }
    return bool(plain[name]())


def reads(when: dict[str, Any]) -> set[str]:
    found = set(when) & {"domain", "language", "has_context"}
    for part in (
        *when.get("all", ()),
        *when.get("any", ()),
        *([when["not"]] if "not" in when else ()),
    ):
        found |= reads(part)
    return found


def distrusted(rules: Rules, case: Case) -> str:
    signals: Signals = case["signals"]
    needed = set().union(*(reads(rule["when"]) for rule in rules))
    unreadable = isinstance(case["request"].prompt, tuple) and not signals.total_tokens
    if signals.error or any(item.score != item.score for item in signals.items):
        return "on_classifier_error"
    if unreadable:
        return "on_truncated_input"
    if needed - {item.name for item in signals.items}:
        return "on_classifier_error"
    return "on_truncated_input" if signals.truncated else ""


def expected(rules: Rules, blocks: dict[str, Any], case: Case) -> tuple[str, str | None, set[str]]:
    """Mode, deny and bans."""
    bans = {
        mode
        for rule in rules
        if "ban" in rule and holds(rule["when"], case)
        for mode in rule["ban"]
    }
    doubt = distrusted(rules, case)
    mode, free = blocks[doubt or "default"]["mode"], False
    for rule in rules:
        if "deny" in rule and holds(rule["when"], case):
            return "standard", rule["deny"], bans
        if "decide" not in rule or doubt or not holds(rule["when"], case):
            continue
        if rule["decide"]["mode"] not in bans:
            mode, free = rule["decide"]["mode"], rule["caller_may_choose"]
            break
    if mode in bans:
        mode = "standard"
    wish = case["request"].requested_mode
    if wish is Mode.STANDARD or (wish is not None and free and wish.value not in bans):
        mode = wish.value
    return mode, None, bans


def numbered(rules: Rules) -> Rules:
    return [{"id": f"r{i}", **rule} for i, rule in enumerate(rules)]


def policy_of(rules: Rules, blocks: dict[str, Any], layer: dict[str, Any] | None = None) -> Policy:
    base = {"version": 1, "name": "p", **blocks, "rules": numbered(rules)}
    index = {"version": 1, "name": "s", "policies": ["base.yaml"]}
    texts = {"base.yaml": plain_yaml(base)}
    if layer is not None:
        index["tighten"] = ["layer.yaml"]
        texts["layer.yaml"] = plain_yaml({"version": 1, "name": "l", **layer})
    return parse_policy(
        plain_yaml(index),
        "set.yaml",
        verifiers=("coupled",),
        draft_sources=("suffix",),
        read=lambda path: texts[path.name],
    )


@few
@given(rule_lists, blocks, cases)
def test_every_decision_is_that_of_the_plain_reading(
    rules: Rules, blocks: dict[str, Any], case: Case
) -> None:
    decision = decide(policy_of(rules, blocks), **case)
    mode, deny, bans = expected(rules, blocks, case)

    assert (decision.mode.value, decision.deny, set(decision.bans)) == (mode, deny, bans)


tightening_rules = st.builds(
    lambda when, action: {"when": when, **action},
    conditions,
    st.one_of(
        st.builds(
            lambda modes: {"ban": sorted(modes)},
            st.sets(st.sampled_from(("speculative", "hybrid")), min_size=1),
        ),
        st.just({"deny": "not for you"}),
        st.builds(lambda n: {"limit": {"max_tokens": n}}, st.integers(1, 9)),
        st.builds(lambda t: {"limit": {"max_temperature": t}}, st.sampled_from((0.1, 0.9))),
    ),
)
layers = st.builds(
    lambda rules: {
        "for": {"team": {"is": "red"}},
        "rules": [{"id": f"l{i}", **rule} for i, rule in enumerate(rules)],
    },
    st.lists(tightening_rules, min_size=1, max_size=4),
)


def capped(limit: float | None, by: float | None) -> bool:
    return by is None or (limit is not None and limit <= by)


@few
@given(rule_lists, blocks, cases, layers)
def test_a_layer_only_tightens(
    rules: Rules, blocks: dict[str, Any], case: Case, layer: dict[str, Any]
) -> None:
    base = decide(policy_of(rules, blocks), **case)
    tight = decide(policy_of(rules, blocks, layer), **case)

    assert tight.mode in (base.mode, Mode.STANDARD)
    assert tight.deny is not None or base.deny is None
    assert set(base.bans) <= set(tight.bans)
    assert tight.mode.value not in tight.bans
    assert capped(tight.limits.max_tokens, base.limits.max_tokens)
    assert capped(tight.limits.max_temperature, base.limits.max_temperature)
    assert (tight.backend, tight.verifier) == (base.backend, base.verifier)
    if tight.mode is base.mode:
        for field in ("draft", "standard_first", "content_tokens", "max_distortion"):
            assert getattr(tight, field) == getattr(base, field)


@few
@given(rule_lists, blocks, cases, layers)
def test_a_layer_changes_nothing_for_anybody_else(
    rules: Rules, blocks: dict[str, Any], case: Case, layer: dict[str, Any]
) -> None:
    other = {**case, "caller": Caller("somebody", "blue")}
    base = decide(policy_of(rules, blocks), **other)
    tight = decide(policy_of(rules, blocks, layer), **other)

    same = {"trace": (), "policy_hash": "", "policy": ""}
    assert msgspec.structs.replace(base, **same) == msgspec.structs.replace(tight, **same)


@few
@given(rule_lists, blocks, cases, st.lists(st.booleans(), max_size=12))
def test_the_end_of_rules_never_makes_an_answer_faster(
    rules: Rules, blocks: dict[str, Any], case: Case, ended: list[bool]
) -> None:
    over = [
        {**rule, "expires": "1980-01-01"} if end else rule
        for rule, end in zip(rules, [*ended, *[False] * len(rules)], strict=False)
    ]
    before = decide(policy_of(rules, blocks), **case)
    after = decide(policy_of(over, blocks), **case)

    assert after.mode in (before.mode, Mode.STANDARD)
    assert (after.rule, after.deny, after.bans) == (before.rule, before.deny, before.bans)
    assert after.limits == before.limits


@few
@given(rule_lists, blocks, cases, conditions, actions)
def test_a_limit_changes_no_mode(
    rules: Rules,
    blocks: dict[str, Any],
    case: Case,
    when: dict[str, Any],
    action: dict[str, Any],
) -> None:
    all_rules = [*rules, {"when": when, **action}]
    limit = {"id": "limit", "limit": {"max_tokens": 3}}
    before = decide(policy_of(all_rules, blocks), **case)
    after = decide(policy_of([*all_rules, limit], blocks), **case)

    assert after.limits.max_tokens == 3
    for field in ("mode", "rule", "deny", "draft", "forced_by"):
        assert getattr(before, field) == getattr(after, field)
