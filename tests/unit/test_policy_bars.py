"""Where a policy's bans begin."""

from __future__ import annotations

from pathlib import Path

from gateway.routing.bars import Bar, bars, thresholds
from gateway.routing.policy import Policy, load, parse_policy

POLICIES = Path(__file__).parents[2] / "policies"


def policy(*rules: str) -> Policy:
    text = "version: 1\nname: p\nrules:\n" + "".join(f"  - {rule}\n" for rule in rules)
    text = text.replace("BOTH", "[speculative, hybrid]")
    return parse_policy(text, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))


def test_the_shipped_policy_has_a_bar_for_each_banned_domain() -> None:
    assert thresholds(load(POLICIES / "default.yaml")) == {
        "medical": 0.1,
        "legal": 0.1,
        "creative_writing": 0.5,
    }


def test_a_bar_counts_where_reaching_it_is_enough() -> None:
    found = bars(
        policy(
            "{id: a, ban: BOTH, when: {domain: {in: [medical, legal], min_probability: 0.2}}}",
            "{id: b, ban: BOTH, when: {any: [{domain: {is: legal, min_probability: 0.1}},"
            " {stream: true}]}}",
            "{id: c, ban: BOTH, when: {all: [{domain: {is: code, min_probability: 0.3}}]}}",
        )
    )
    assert found == (
        Bar("a", "medical", 0.2),
        Bar("a", "legal", 0.2),
        Bar("b", "legal", 0.1),
        Bar("c", "code", 0.3),
    )


def test_a_bar_that_is_not_enough_says_why() -> None:
    found = policy(
        "{id: a, ban: BOTH, when: {domain: {is: medical, min_probability: 0.2}, stream: true}}",
        "{id: b, ban: BOTH, when: {all: [{domain: {is: legal, min_probability: 0.1}}, {n: 1}]}}",
        "{id: c, ban: [speculative], when: {domain: {is: code, min_probability: 0.3}}}",
        "{id: d, ban: BOTH, when: {domain: {is: finance}}}",
        "{id: e, ban: BOTH, when: {not: {domain: {is: code, min_probability: 0.3}}}}",
        "{id: f, ban: BOTH}",
    )
    assert [(bar.rule, bar.limited) for bar in bars(found)] == [
        ("a", "the rule asks for more"),
        ("b", "the rule asks for more"),
        ("c", "hybrid is not banned"),
        ("d", "the most probable domain only"),
    ]
    assert thresholds(found) == {}


def test_the_lowest_of_several_bars_counts() -> None:
    rule = "{{id: r{0}, ban: BOTH, when: {{domain: {{is: legal, min_probability: 0.{0}}}}}}}"

    assert thresholds(policy(*(rule.format(n) for n in (3, 2, 4)))) == {"legal": 0.2}
