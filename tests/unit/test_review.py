"""A second opinion of the domains: it can only take a mode away."""

from datetime import UTC, datetime

import pytest

from gateway.routing.decide import decide
from gateway.routing.policy import parse_policy
from gateway.routing.review import review
from gateway.types import DOMAINS, Caller, ChatRequest, Message, Mode, Signal, Signals

NOW = datetime(2026, 1, 5, tzinfo=UTC)
RULES = """\
  - {id: medical, ban: [speculative, hybrid], when: {domain: {is: medical, min_probability: 0.1}}}
  - {id: half, ban: [speculative], when: {all: [{domain: {is: legal, min_probability: 0.1}}, {n: 1}]}}
  - {id: no-fraud, deny: Not here., when: {domain: {is: finance, min_probability: 0.9}}}
  - {id: slow, decide: {mode: standard}, when: {domain: {is: creative_writing, min_probability: 0.5}}}
  - {id: code, decide: {mode: speculative}, when: {domain: {is: code, min_probability: 0.6}}}
  - id: support
    decide: {mode: hybrid, standard_first: 5}
    when: {domain: {is: customer_support, min_probability: 0.6}}
"""


def policy(rules=RULES):
    return parse_policy(
        f"version: 1\nname: p\nrules:\n{rules}",
        "p.yaml",
        verifiers=("coupled",),
        draft_sources=("suffix",),
    )


def signals(**scores):
    return Signals(tuple(Signal("domain", d, scores.get(d, 0.0), "domain") for d in DOMAINS))


def reviewed(second, first=None, rules=RULES, n=1):
    made, known = policy(rules), signals(**(first or {"code": 0.9}))
    request = ChatRequest("m", (Message("user", "hi"),), n=n)
    given = {"prompt_tokens": 3, "now": NOW}
    decided = decide(made, known, request, Caller(), **given)
    return decided.mode, review(made, known, request, Caller(), decided, second, **given)


@pytest.mark.parametrize(
    ("second", "rule"),
    [
        ({}, None),
        ({"medical": 0.05}, None),
        ({"medical": 0.1}, "medical"),
        ({"legal": 0.4}, "half"),
        ({"finance": 0.95}, "no-fraud"),
        ({"creative_writing": 0.6}, "slow"),
        ({"medical": 0.4, "legal": 0.4}, "medical"),
        ({"code": 0.0}, None),
        ({"customer_support": 0.99}, None),
        ({"general_chat": 0.99}, None),
    ],
)
def test_a_domain_that_restricts_counts_by_its_higher_probability(second, rule):
    assert reviewed(second) == (Mode.SPECULATIVE, rule)


def test_a_lower_second_opinion_lifts_no_ban():
    assert reviewed({"medical": 0.0}, {"code": 0.9, "medical": 0.2}) == (Mode.STANDARD, None)


def test_only_the_decided_mode_matters():
    assert reviewed({"legal": 0.4}, {"customer_support": 0.9}) == (Mode.HYBRID, None)


def test_the_other_conditions_of_a_rule_still_count():
    assert reviewed({"legal": 0.4}, n=2) == (Mode.SPECULATIVE, None)


def test_a_ban_on_the_absence_of_a_domain_is_not_lifted_nor_made():
    rules = (
        "  - {id: only-code, ban: [speculative], "
        "when: {not: {domain: {is: code, min_probability: 0.5}}}}\n"
        "  - {id: all, decide: {mode: speculative}}\n"
    )
    assert reviewed({"code": 0.0}, rules=rules) == (Mode.SPECULATIVE, None)
    assert reviewed({"code": 1.0}, {"code": 0.1}, rules=rules) == (Mode.STANDARD, None)


def test_which_domains_restrict():
    assert policy().restricting_domains == {"medical", "legal", "finance", "creative_writing"}
