from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gateway.routing.decide import decide
from gateway.routing.policy import Policy, parse_policy
from gateway.routing.testing import given_signals
from gateway.types import (
    Caller,
    ChatRequest,
    Decision,
    DraftSetting,
    Mode,
    RuleTrace,
    SamplingLimits,
    Signal,
    Signals,
)

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
POLICY = """\
version: 1
name: p
default: {mode: standard, max_tokens: 9}
on_classifier_error: {mode: hybrid, standard_first: 4}
on_truncated_input: {mode: speculative}
rules:
  - {id: internal, when: {team: {is: blocked}}, deny: Not for you., reason: They asked for it.}
  - id: code
    when: {domain: {is: code, min_probability: 0.6}}
    decide: {mode: speculative, draft: {num_speculative_tokens: 5}, max_temperature: 0.4}
    caller_may_choose: true
    reason: Code repeats itself.
  - id: support
    when: {domain: {is: customer_support}}
    decide: {mode: hybrid, standard_first: 10, content_tokens: standard, backend: b}
  - {id: medical, when: {domain: {is: medical, min_probability: 0.1}}, ban: [speculative, hybrid]}
  - {id: long, when: {min_prompt_tokens: 1000}, ban: [speculative]}
  - {id: closed, when: {domain: {is: finance, min_probability: 0.9}}, deny: No finance.}
"""


def parse(text: str) -> Policy:
    return parse_policy(text, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))


def choose(
    signals: Signals | dict[str, float],
    *,
    policy: str = POLICY,
    caller: Caller | None = None,
    prompt_tokens: int = 10,
    **request: Any,
) -> Decision:
    asked = ChatRequest(**{"model": "m", "prompt": "x", **request})
    given = given_signals(signals) if isinstance(signals, dict) else signals
    return decide(
        parse(policy), given, asked, caller or Caller(), prompt_tokens=prompt_tokens, now=NOW
    )


def summary(decision: Decision) -> tuple[str, str]:
    return decision.mode.value, decision.rule


def test_the_first_matching_rule_decides_with_all_its_parameters() -> None:
    decision = choose({"code": 0.9, "customer_support": 0.95})

    assert summary(decision) == ("speculative", "code")
    assert decision.draft == DraftSetting("suffix", 5)
    assert decision.limits == SamplingLimits(max_temperature=0.4)
    assert decision.reason == "Code repeats itself."
    assert decision.policy == "p"
    assert decision.policy_hash == parse(POLICY).hash
    assert decision.bans == {}
    assert decision.forced_by is None


def test_a_decision_turned_to_standard_keeps_nothing_of_the_hybrid_one() -> None:
    last = "  - {id: last, decide: {mode: hybrid, standard_first: 2, max_entropy: 1.5}}\n"
    hybrid = choose({}, policy=POLICY + last)
    wished = choose({}, policy=POLICY + last, requested_mode=Mode.STANDARD)

    assert (hybrid.mode, hybrid.standard_first, hybrid.max_entropy) == (Mode.HYBRID, 2, 1.5)
    assert (wished.mode, wished.standard_first, wished.max_entropy) == (Mode.STANDARD, 0, None)


def test_without_a_matching_rule_the_default_decides() -> None:
    decision = choose({"general_chat": 0.9})

    assert summary(decision) == ("standard", "default")
    assert decision.limits == SamplingLimits(max_tokens=9)
    assert decision.draft is None


def test_a_ban_wins_although_it_stands_below_the_rule_that_decides() -> None:
    decision = choose({"code": 0.9, "medical": 0.1})

    assert summary(decision) == ("standard", "medical")
    assert decision.bans == {"speculative": "medical", "hybrid": "medical"}


def test_a_rule_whose_mode_is_banned_is_passed_over_for_the_next_one() -> None:
    decision = choose({"code": 0.9, "customer_support": 0.95}, prompt_tokens=1000)

    assert summary(decision) == ("hybrid", "support")
    assert decision.bans == {"speculative": "long"}


def test_a_lossy_verifier_goes_with_the_mode_it_was_allowed_for() -> None:
    lossy = """
version: 1
name: p
rules:
  - id: headlines
    decide: {mode: speculative, verifier: typical, allow_lossy: true, max_distortion: 0.2}
"""
    policy = parse_policy(
        lossy, "p.yaml", verifiers=("coupled", "typical"), draft_sources=("suffix",)
    )

    def chosen(wish: Mode | None) -> Decision:
        request = ChatRequest(model="m", prompt="x", requested_mode=wish)
        return decide(policy, given_signals({}), request, Caller(), prompt_tokens=1, now=NOW)

    allowed, wished = chosen(None), chosen(Mode.STANDARD)
    assert (allowed.verifier, allowed.max_distortion) == ("typical", 0.2)
    assert (wished.mode, wished.verifier, wished.max_distortion) == (Mode.STANDARD, "coupled", None)


def test_a_ban_is_named_by_the_first_rule_that_makes_it() -> None:
    decision = choose({"medical": 0.5}, prompt_tokens=1000)

    assert decision.bans == {"speculative": "medical", "hybrid": "medical"}


def test_the_trace_has_every_rule_in_the_order_of_the_file() -> None:
    decision = choose({"code": 0.9, "customer_support": 0.3}, prompt_tokens=2000)

    assert decision.trace == (
        RuleTrace("internal", "deny", False, "team none"),
        RuleTrace("code", "decide", True, "domain code 0.9 >= 0.6; speculative is banned by long"),
        RuleTrace(
            "support",
            "decide",
            False,
            "domain customer_support is not the most probable: code 0.9",
        ),
        RuleTrace("medical", "ban", False, "domain medical 0 < 0.1"),
        RuleTrace("long", "ban", True, "prompt_tokens 2000 >= 1000"),
        RuleTrace("closed", "deny", False, "domain finance 0 < 0.9"),
    )


def test_rules_after_the_one_that_decides_are_not_reached() -> None:
    trace = choose({"code": 0.9, "finance": 0.95}).trace

    assert trace[2] == RuleTrace("support", "decide", False, "not reached")
    assert trace[5] == RuleTrace("closed", "deny", False, "not reached")


def test_a_deny_refuses_with_its_message() -> None:
    decision = choose({"code": 0.9}, caller=Caller("c", "blocked"), requested_mode=Mode.STANDARD)

    assert summary(decision) == ("standard", "internal")
    assert decision.deny == "Not for you."
    assert decision.reason == "They asked for it."
    assert decision.draft is None
    assert len(decision.trace) == 6


def test_a_deny_below_a_rule_that_decides_is_not_reached() -> None:
    assert choose({"code": 0.9, "finance": 0.95}).deny is None
    assert choose({"finance": 0.95}).deny == "No finance."


def test_a_default_that_is_banned_becomes_standard() -> None:
    text = POLICY.replace("{mode: standard, max_tokens: 9}", "{mode: speculative, max_tokens: 9}")
    decision = choose({"general_chat": 0.9}, policy=text, prompt_tokens=5000)

    assert summary(decision) == ("standard", "long")
    assert decision.draft is None
    assert decision.limits == SamplingLimits(max_tokens=9)
    assert decision.reason == "speculative is banned by long"


# ---- Signals that cannot be trusted


def test_a_classifier_error_replaces_every_rule_that_decides() -> None:
    decision = choose(given_signals({"code": 0.9}, error="domain: TimeoutError"))

    assert summary(decision) == ("hybrid", "on_classifier_error")
    assert decision.standard_first == 4
    assert decision.reason == "classifier error: domain: TimeoutError"
    assert decision.trace[1] == RuleTrace(
        "code", "decide", False, "not tried: signals cannot be trusted"
    )


def test_text_that_was_not_all_scored_replaces_every_rule_that_decides() -> None:
    decision = choose(given_signals({"code": 0.9}, truncated=True))

    assert summary(decision) == ("speculative", "on_truncated_input")
    assert decision.reason == "only 1 of 2 tokens were scored"


def test_an_error_counts_before_truncation() -> None:
    signals = given_signals({}, error="e", truncated=True)

    assert choose(signals).rule == "on_classifier_error"


@pytest.mark.parametrize("broken", [{"error": "e"}, {"truncated": True}])
def test_bans_and_denies_that_match_hold_all_the_same(broken: dict[str, Any]) -> None:
    banned = choose(given_signals({"code": 0.9, "medical": 0.2}, **broken))
    denied = choose(given_signals({"code": 0.9, "finance": 0.95}, **broken))

    assert banned.mode is Mode.STANDARD
    assert banned.draft is None
    assert set(banned.bans) == {"speculative", "hybrid"}
    assert denied.deny == "No finance."
    assert choose(given_signals({}, **broken), caller=Caller("c", "blocked")).rule == "internal"


def test_a_signal_that_no_classifier_gave_is_a_classifier_error() -> None:
    decision = choose(Signals())

    assert decision.rule == "on_classifier_error"
    assert decision.reason == "no classifier gave the signal domain"


def test_a_policy_that_reads_no_signal_needs_none() -> None:
    text = "version: 1\nname: p\nrules: [{id: s, when: {n: 1}, decide: {mode: speculative}}]\n"

    assert summary(choose(Signals(), policy=text)) == ("speculative", "s")


def test_a_score_that_is_not_a_number_is_a_classifier_error() -> None:
    signals = given_signals({"code": 0.9})
    nan = Signal("domain", "medical", float("nan"), "t")
    decision = choose(msgspec.structs.replace(signals, items=(*signals.items, nan)))

    assert decision.rule == "on_classifier_error"
    assert decision.reason == "the score of domain medical is not a number"


def test_a_prompt_of_token_ids_that_nothing_read_is_truncated_input() -> None:
    signals = msgspec.structs.replace(given_signals({}), scored_tokens=0, total_tokens=0)

    assert choose(signals, prompt=(1, 2, 3)).rule == "on_truncated_input"
    assert choose(signals, prompt="").rule == "default"


# ---- What callers ask for


def test_a_caller_may_always_have_standard() -> None:
    for domains in ({"code": 0.9}, {"customer_support": 0.9}):
        decided = choose(domains)
        decision = choose(domains, requested_mode=Mode.STANDARD)

        assert decision == msgspec.structs.replace(
            decided,
            mode=Mode.STANDARD,
            draft=None,
            standard_first=0,
            content_tokens=Mode.SPECULATIVE,
            forced_by="header",
            trace=(
                *decided.trace,
                RuleTrace(
                    "x-draftgate-mode", "request", True, f"standard instead of {decided.mode}"
                ),
            ),
        )


def test_a_wish_for_what_was_decided_changes_nothing() -> None:
    decision = choose({"code": 0.9}, requested_mode=Mode.SPECULATIVE)

    assert decision.forced_by is None
    assert decision.trace[-1].matched


def test_a_wish_is_ignored_where_the_rule_does_not_let_callers_choose() -> None:
    decision = choose({"customer_support": 0.9}, requested_mode=Mode.SPECULATIVE)

    assert summary(decision) == ("hybrid", "support")
    assert decision.forced_by is None
    assert decision.trace[-1] == RuleTrace(
        "x-draftgate-mode", "request", False, "support does not let callers choose speculative"
    )


@pytest.mark.parametrize(
    "signals", [given_signals({}), given_signals({}, error="e"), given_signals({}, truncated=True)]
)
def test_nobody_may_choose_where_no_rule_decided(signals: Signals) -> None:
    for wish in (Mode.SPECULATIVE, Mode.HYBRID):
        assert choose(signals, requested_mode=wish).mode is choose(signals).mode


def test_a_caller_may_choose_where_the_rule_says_so() -> None:
    decision = choose({"code": 0.9}, requested_mode=Mode.HYBRID)

    assert summary(decision) == ("hybrid", "code")
    assert decision.forced_by == "header"
    assert decision.standard_first == 10
    assert decision.draft == DraftSetting("suffix", 5)


def test_a_wish_from_a_standard_rule_gets_a_draft() -> None:
    text = """\
version: 1
name: p
rules:
  - {id: free, decide: {mode: standard}, caller_may_choose: true}
"""
    decision = choose({}, policy=text, requested_mode=Mode.SPECULATIVE)

    assert summary(decision) == ("speculative", "free")
    assert decision.draft == DraftSetting()


def test_a_wish_never_lifts_a_ban() -> None:
    text = POLICY.replace("ban: [speculative, hybrid]", "ban: [hybrid]")
    decision = choose({"code": 0.9, "medical": 0.5}, policy=text, requested_mode=Mode.HYBRID)

    assert summary(decision) == ("speculative", "code")
    assert decision.trace[-1].detail == "hybrid is banned by medical"


def test_a_decision_can_be_written_as_json() -> None:
    decision = choose({"code": 0.9, "medical": 0.5}, requested_mode=Mode.STANDARD)

    assert msgspec.json.decode(msgspec.json.encode(decision), type=Decision) == decision
