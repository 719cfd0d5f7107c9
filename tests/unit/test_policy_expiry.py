"""Rules with a last day, limits, and fixed temperatures."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.exchange import _final_sampling
from gateway.routing.decide import decide
from gateway.routing.policy import Policy, parse_policy
from gateway.routing.testing import given_signals
from gateway.types import Caller, ChatRequest, Decision, Mode, RuleTrace, Sampling, SamplingLimits

LAST_DAY = datetime(2026, 3, 31, 23, 59, 59, tzinfo=UTC)
AFTER = LAST_DAY + timedelta(seconds=1)
POLICY = """\
version: 1
name: p
default: {mode: hybrid, standard_first: 2}
rules:
  - {id: ban, when: {domain: {is: medical, min_probability: 0.1}}, ban: [speculative, hybrid],
     expires: 2026-03-31}
  - {id: deny, when: {domain: {is: legal, min_probability: 0.1}}, deny: No., expires: "2026-03-31"}
  - {id: cool, when: {domain: {is: finance, min_probability: 0.1}}, limit: {max_tokens: 5},
     expires: 2026-03-31}
  - id: pilot
    when: {domain: {is: code}}
    decide: {mode: speculative, temperature: 0.2, max_tokens: 9}
    caller_may_choose: true
    expires: 2026-03-31
  - {id: rest, when: {domain: {is: code}}, decide: {mode: speculative}}
"""


def parse(text: str = POLICY) -> Policy:
    return parse_policy(text, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))


def choose(signals: dict[str, float], now: datetime, **request: Any) -> Decision:
    asked = ChatRequest(**{"model": "m", "prompt": "x", **request})
    return decide(parse(), given_signals(signals), asked, Caller(), prompt_tokens=9, now=now)


def test_a_rule_holds_through_its_last_day() -> None:
    decision = choose({"code": 0.9}, LAST_DAY)

    assert (decision.mode, decision.rule) == (Mode.SPECULATIVE, "pilot")
    assert decision.trace[3] == RuleTrace(
        "pilot", "decide", True, "most probable domain code 0.9 >= 0.5"
    )


def test_the_last_day_ends_in_utc_wherever_the_clock_is() -> None:
    in_tokyo = LAST_DAY.astimezone(timezone(timedelta(hours=9)))

    assert choose({"code": 0.9}, in_tokyo).mode is Mode.SPECULATIVE


def test_after_its_last_day_a_rule_decides_standard_and_hands_nothing_on() -> None:
    """The rule below would be as fast again: an end must not make an answer faster."""
    decision = choose({"code": 0.9}, AFTER)

    assert (decision.mode, decision.rule, decision.draft) == (Mode.STANDARD, "pilot", None)
    assert decision.limits == SamplingLimits(max_tokens=9, temperature=0.2)
    assert decision.reason == "the rule pilot expired on 2026-03-31"
    assert decision.trace[3].detail.endswith("; expired 2026-03-31, decides standard")
    assert choose({"code": 0.9}, AFTER, requested_mode=Mode.SPECULATIVE).mode is Mode.STANDARD


def test_bans_refusals_and_limits_hold_on_after_their_last_day() -> None:
    banned = choose({"medical": 0.9}, AFTER)
    denied = choose({"legal": 0.9}, AFTER)
    limited = choose({"finance": 0.9}, AFTER)

    assert (banned.mode, banned.rule) == (Mode.STANDARD, "ban")
    assert banned.trace[0].detail == "domain medical 0.9 >= 0.1; expired 2026-03-31, still holds"
    assert denied.deny == "No."
    assert limited.limits == SamplingLimits(max_tokens=5)
    assert limited.trace[2].kind == "limit"


def test_a_policy_warns_of_what_has_expired() -> None:
    assert parse().warnings(date(2026, 3, 31)) == ()
    assert parse().warnings(date(2026, 4, 1)) == (
        "rule 'ban' expired on 2026-03-31: its ban holds on until the rule is renewed or removed",
        "rule 'deny' expired on 2026-03-31: its deny holds on until the rule is renewed or removed",
        "rule 'cool' expired on 2026-03-31: its limit holds on until the rule is renewed or removed",
        "rule 'pilot' expired on 2026-03-31: it decides standard mode until the rule is renewed or "
        "removed",
    )


@pytest.mark.parametrize("value", ["soon", "2026-02-30", "2026", "2026-03-31T00:00:00Z", "true"])
def test_what_is_no_day_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"p.yaml:4:\d+: rules\[0\].expires: "):
        parse(f"version: 1\nname: p\nrules:\n  - {{id: a, deny: x, expires: {value}}}\n")


def test_all_limits_that_match_count_whatever_decides() -> None:
    policy = parse("""\
version: 1
name: p
rules:
  - {id: a, limit: {max_temperature: 0.9, max_tokens: 100}}
  - {id: b, decide: {mode: standard, max_temperature: 0.8, max_tokens: 300}}
  - {id: c, when: {stream: false}, limit: {max_temperature: 0.7}}
  - {id: d, when: {stream: true}, limit: {max_temperature: 0.1}}
""")
    request = ChatRequest(model="m", prompt="x")
    decision = decide(policy, given_signals({}), request, Caller(), prompt_tokens=1, now=AFTER)

    assert decision.rule == "b"
    assert decision.limits == SamplingLimits(0.7, 100)


@pytest.mark.parametrize(
    ("limits", "asked", "expected"),
    [
        (SamplingLimits(temperature=0.2), 1.0, 0.2),
        (SamplingLimits(temperature=0.2), 0.0, 0.2),
        (SamplingLimits(max_temperature=0.1, temperature=0.2), 1.0, 0.1),
        (SamplingLimits(max_temperature=0.4), 1.0, 0.4),
        (SamplingLimits(max_temperature=0.4), 0.3, 0.3),
        (SamplingLimits(), 0.3, 0.3),
    ],
)
def test_the_temperature_is_the_fixed_one_under_the_cap(
    limits: SamplingLimits, asked: float, expected: float
) -> None:
    decision = Decision(mode=Mode.STANDARD, rule="r", policy="p", policy_hash="", limits=limits)

    assert _final_sampling(Sampling(temperature=asked), decision).temperature == expected


def test_a_temperature_is_fixed_or_capped_not_both() -> None:
    with pytest.raises(ConfigError, match="has both `temperature` and `max_temperature`"):
        parse("version: 1\nname: p\ndefault: {mode: standard, temperature: 1, max_temperature: 1}")
