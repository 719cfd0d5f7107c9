import hashlib
from pathlib import Path

import msgspec
import pytest

from gateway.errors import ConfigError
from gateway.routing.policy import Policy, load, parse_policy
from gateway.types import DraftSetting, Mode, SamplingLimits

HEAD = "version: 1\nname: p\n"


def parse(text: str) -> Policy:
    return parse_policy(
        HEAD + text,
        "p.yaml",
        verifiers=("coupled", "rejection", "typical"),
        draft_sources=("suffix", "model"),
        backends=("local", "cloud"),
    )


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return [str(problem) for problem in caught.value.problems]


def test_a_lossy_verifier_is_taken_with_permission_and_a_budget() -> None:
    rule = parse("""
rules:
  - id: drafts-of-headlines
    decide: {mode: speculative, verifier: typical, allow_lossy: true, max_distortion: 0.2}
""").rules[0]

    assert (rule.decision.verifier, rule.decision.max_distortion) == ("typical", 0.2)


def test_a_rule_keeps_all_that_was_written() -> None:
    rule = parse("""
rules:
  - id: all-of-it
    when: {stream: true}
    decide:
      mode: hybrid
      draft: {source: model, num_speculative_tokens: 3}
      verifier: rejection
      standard_first: 5
      content_tokens: standard
      max_entropy: 2.5
      hybrid_fallback: speculative
      max_temperature: 0.4
      max_tokens: 100
      backend: cloud
      shadow_rate: 0
      capture: text
    reason: because
    owner: me
    caller_may_choose: true
""").rules[0]

    assert (rule.id, rule.kind, rule.owner, rule.caller_may_choose) == (
        "all-of-it",
        "decide",
        "me",
        True,
    )
    assert rule.decision is not None
    assert msgspec.structs.asdict(rule.decision) == {
        "mode": Mode.HYBRID,
        "rule": "all-of-it",
        "policy": "p",
        "policy_hash": rule.decision.policy_hash,
        "reason": "because",
        "verifier": "rejection",
        "max_distortion": None,
        "draft": DraftSetting("model", 3),
        "standard_first": 5,
        "content_tokens": Mode.STANDARD,
        "max_entropy": 2.5,
        "hybrid_fallback": Mode.SPECULATIVE,
        "backend": "cloud",
        "limits": SamplingLimits(0.4, 100),
        "shadow_rate": 0.0,
        "capture": "text",
        "deny": None,
        "bans": {},
        "forced_by": None,
        "trace": (),
    }


def test_without_any_rule_everything_is_standard() -> None:
    policy = parse("")

    for block in (policy.default, policy.on_classifier_error, policy.on_truncated_input):
        assert block.mode is Mode.STANDARD
        assert block.draft is None


def test_a_mode_with_drafts_gets_the_default_draft() -> None:
    assert parse("default: {mode: speculative}").default.draft == DraftSetting("suffix", 8)


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(HEAD.replace("\n", "\r\n").encode() + "# é\r\n".encode())
    policy = load(path)

    assert policy.hash == hashlib.sha256(path.read_bytes()).hexdigest()
    assert policy.version == policy.default.policy_version == policy.hash[:12]
    assert policy.default.policy_hash == policy.hash


def test_a_policy_knows_which_signals_it_reads() -> None:
    policy = parse("""
rules:
  - {id: a, ban: [hybrid], when: {any: [{not: {domain: {is: code}}}, {stream: true}]}}
  - {id: b, deny: x, when: {all: [{language: {is: fr}}]}}
""")

    assert policy.signals_read == {"domain", "language"}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("{id: a}", "needs exactly one of `ban` or `limit` or `decide` or `deny`, has none"),
        ("{id: a, ban: [hybrid], deny: x}", "has `ban` and `deny`"),
        ("{id: a, ban: []}", "rules[0].ban: expected at least 1"),
        ("{id: a, ban: [standard]}", "standard cannot be banned"),
        ("{id: a, ban: [hybrid, hybrid]}", "a mode is listed twice"),
        ("{id: a, ban: [fast]}", "unknown value 'fast' (known: hybrid, speculative)"),
        ("{id: a, ban: hybrid}", "expected a list, got hybrid (write [hybrid])"),
        ("{id: A b, deny: x}", "'A b' cannot be a rule id"),
        ("{id: default, deny: x}", "'default' is reserved"),
        ("{deny: x}", "missing field 'id'"),
        ('{id: a, deny: ""}', "expected text of length >= 1"),
        ("{id: a, deny: x, caller_may_choose: true}", "`caller_may_choose` needs `decide`"),
        ("{id: a, deny: x, wen: {stream: true}}", "unknown field 'wen' (did you mean 'when'?)"),
        ("{id: a, decide: {mode: hybrid, max_entropy: 0}}", "expected float > 0"),
        ("{id: a, decide: {mode: hybrid, max_entropy: .inf}}", "not a finite number"),
        ("{id: a, decide: {mode: speculative, max_entropy: 1}}", "do nothing in speculative mode"),
        ("{id: a, decide: {mode: standard, hybrid_fallback: standard}}", "do nothing in standard"),
        ("{id: a, decide: {mode: hybrid}}", "this hybrid is plain speculative"),
        ("{id: a, decide: {mode: hybrid, standard_first: 0}}", "this hybrid is plain"),
        ("{id: a, decide: {mode: speculative, standard_first: 3}}", "do nothing in speculative"),
        ("{id: a, decide: {mode: standard, content_tokens: standard}}", "do nothing in standard"),
        ("{id: a, decide: {mode: standard, draft: {}}}", "standard mode takes no draft"),
        ("{id: a, decide: {mode: speculative, verifier: coupld}}", "did you mean 'coupled'?"),
        ("{id: a, decide: {mode: speculative, verifier: typical}}", "can change what answers say"),
        (
            "{id: a, decide: {mode: speculative, verifier: typical, allow_lossy: true}}",
            "`allow_lossy: true` and `max_distortion` go together",
        ),
        (
            "{id: a, decide: {mode: hybrid, standard_first: 1, verifier: typical, max_distortion: 1}}",
            "`allow_lossy: true` and `max_distortion` go together",
        ),
        (
            "{id: a, decide: {mode: speculative, allow_lossy: true, max_distortion: 0.1}}",
            "'coupled' is exact",
        ),
        (
            "{id: a, decide: {mode: standard, verifier: typical, allow_lossy: true, max_distortion: 1}}",
            "standard mode is exact",
        ),
        (
            "{id: a, decide: {mode: speculative, verifier: typical, allow_lossy: true, max_distortion: 0}}",
            "max_distortion",
        ),
        (
            "{id: a, decide: {mode: speculative, verifier: typical, allow_lossy: true, max_distortion: 1.1}}",
            "max_distortion",
        ),
        ("{id: a, decide: {mode: speculative, backend: clod}}", "did you mean 'cloud'?"),
        (
            "{id: a, decide: {mode: speculative, draft: {source: sufix}}}",
            "unknown draft source 'sufix' (did you mean 'suffix'?)",
        ),
        (
            "{id: a, decide: {mode: speculative, draft: {num_speculative_tokens: 0}}}",
            "expected int >= 1, got 0",
        ),
        (
            "{id: a, decide: {mode: speculative, draft: {num_speculative_tokens: 65}}}",
            "expected int <= 64, got 65",
        ),
        ("{id: a, decide: {mode: standard, max_temperature: -1}}", "expected float >= 0.0"),
        ("{id: a, decide: {mode: standard, max_tokens: 0}}", "expected int >= 1, got 0"),
        (
            "{id: a, decide: {mode: standard, shadow_rate: 0.1}}",
            "a shadow run decodes in standard mode, and so does this (remove `shadow_rate`)",
        ),
        (
            "{id: a, decide: {mode: hybrid, verifier: rejection, standard_first: 1, "
            "shadow_rate: 0.1}}",
            "draws other tokens from the same seed",
        ),
        ("{id: a, decide: {mode: speculative, shadow_rate: 1.1}}", "expected float <= 1.0"),
        ("{id: a, decide: {mode: standard, capture: all}}", "capture"),
        ("{id: a, limit: {capture: text}}", "capture"),
        ("{id: a, deny: x, when: {}}", "no condition in it"),
        ("{id: a, deny: x, when: }", "nothing is given here"),
        ("{id: a, deny: x, when: {all: []}}", "expected at least 1"),
        ("{id: a, deny: x, when: {any: [{}]}}", "no condition in it"),
        ("{id: a, deny: x, when: {not: {}}}", "no condition in it"),
        ("{id: a, deny: x, when: {domain: {}}}", "needs exactly one of `is` or `in`, has none"),
        ("{id: a, deny: x, when: {domain: {is: code, in: [code]}}}", "has `is` and `in`"),
        ("{id: a, deny: x, when: {domain: {is: medcal}}}", "did you mean 'medical'?"),
        ("{id: a, deny: x, when: {domain: {in: [code, legl]}}}", "did you mean 'legal'?"),
        ("{id: a, deny: x, when: {domain: {in: []}}}", "expected at least 1"),
        ("{id: a, deny: x, when: {domain: {is: code, min_probability: 0}}}", "> 0.0"),
        ("{id: a, deny: x, when: {domain: {is: code, min_probability: 1.1}}}", "<= 1.0"),
        ("{id: a, deny: x, when: {domain: code}}", "expected a mapping, got code"),
        (
            "{id: a, deny: x, when: {response_format: {in: [jsonschema]}}}",
            "did you mean 'json_schema'",
        ),
        ("{id: a, deny: x, when: {language: {in: [en, german]}}}", "'german' is no code"),
        ("{id: a, deny: x, when: {header: {name: X Team, is: b}}}", "cannot be a header's name"),
        ("{id: a, deny: x, when: {header: {name: Cookie, is: b}}}", "it holds credentials"),
        ("{id: a, deny: x, when: {keyword: ['\u200b']}}", "an empty keyword"),
        ("{id: a, ban: [all]}", "unknown value 'all' (known: hybrid, speculative)"),
        ("{id: a, deny: x, when: {language: {is: }}}", "exactly one of `is` or `in`"),
        ("{id: a, deny: x, when: {n: -1}}", "expected int >= 0, got -1"),
        ("{id: a, deny: x, when: {n: {min: 3, max: 2}}}", "min 3 is above max 2"),
        ("{id: a, deny: x, when: {stream: 1}}", "expected bool, got 1"),
        ("{id: a, deny: x, when: {header: {name: x}}}", "exactly one of `is` or `in`"),
        ("{id: a, deny: x, when: {header: {is: x}}}", "missing field 'name'"),
        ("{id: a, deny: x, when: {keyword: []}}", "expected at least 1"),
        ('{id: a, deny: x, when: {keyword: [" "]}}', "an empty keyword would match everything"),
        ('{id: a, deny: x, when: {regex: "("}}', "bad regex: missing ): ("),
        ('{id: a, deny: x, when: {regex: "(?=a)"}}', "RE2 has no look-around"),
        ('{id: a, deny: x, when: {regex: "a{99999}"}}', "bad regex: invalid repetition size"),
        (
            "{id: a, deny: x, when: {regex: '" + r"(?:[^\pL]word[^\pL]|x){200}" + "'}}",
            "regex too large: it compiles to",
        ),
        ("{id: a, deny: x, when: {time: {}}}", "no time in it"),
        ("{id: a, deny: x, when: {time: {between: 9-17}}}", 'write "HH:MM-HH:MM"'),
        ("{id: a, deny: x, when: {time: {between: 09:00-24:01}}}", 'write "HH:MM-HH:MM"'),
        ("{id: a, deny: x, when: {time: {between: 09:00-09:00}}}", "an empty span of time"),
        ("{id: a, deny: x, when: {time: {weekdays: [sunday]}}}", "did you mean 'sun'?"),
        (
            "{id: a, deny: x, when: {time: {between: 09:00-17:00, timezone: Europe/Berln}}}",
            "unknown time zone 'Europe/Berln' (did you mean 'Europe/Berlin'?)",
        ),
        (
            "{id: a, deny: x, when: {time: {between: 09:00-17:00, timezone: ../etc/passwd}}}",
            "unknown time zone '../etc/passwd'",
        ),
    ],
)
def test_a_rule_that_cannot_be_obeyed_is_refused_at_its_line(rule: str, expected: str) -> None:
    found = problems(f"rules:\n  - {rule}\n")

    assert any(expected in problem for problem in found), found
    assert all(problem.startswith("p.yaml:4:") for problem in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "p.yaml:1:1: missing field 'version' (add it)"),
        ("version: 2\nname: p", "p.yaml:1:10: version: version 2 is not known"),
        ('version: "1"\nname: p', "p.yaml:1:10: version: expected int, got 1"),
        ("version: 1\nname: p\nrule: []", "p.yaml:3:1: unknown field 'rule' (did you mean 'rules'"),
        ("version: 1\nname: p\nrules:", "p.yaml:3:1: nothing is given here (give a value"),
        ("version: 1\nname: p\ndefault: standard", "p.yaml:3:10: default: expected a mapping"),
        ("version: 1\nname: p\nrules: {a: b}", "p.yaml:3:8: rules: expected a list"),
    ],
)
def test_a_file_that_is_no_policy_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))

    assert str(caught.value.problems[0]).startswith(expected)


def test_a_rule_id_is_used_once() -> None:
    found = problems("rules:\n  - {id: a, ban: [hybrid]}\n  - {id: a, deny: x}\n")

    assert found == ["p.yaml:5:10: a rule 'a' is already there (rename it)"]


def test_a_mode_that_is_always_banned_cannot_be_decided() -> None:
    found = problems("""\
default: {mode: speculative}
rules:
  - {id: never, ban: [speculative, hybrid]}
  - {id: code, when: {stream: true}, decide: {mode: speculative}}
""")

    assert found == [
        "p.yaml:3:17: speculative is never used: rule 'never' always bans it "
        "(give the ban a `when`, or decide another mode)",
        "p.yaml:6:53: speculative is never used: rule 'never' always bans it "
        "(give the ban a `when`, or decide another mode)",
    ]


def test_rules_after_one_that_always_decides_are_unreachable() -> None:
    found = problems("""\
rules:
  - {id: every, decide: {mode: speculative}}
  - {id: ban, when: {stream: true}, ban: [hybrid]}
  - {id: late, when: {stream: true}, decide: {mode: standard}}
  - {id: later, when: {stream: true}, deny: "no"}
""")

    assert [problem.partition(" (")[0] for problem in found] == [
        "p.yaml:6:10: rule 'late' can never apply: 'every' always comes first",
        "p.yaml:7:10: rule 'later' can never apply: 'every' always comes first",
    ]


def test_a_rule_after_an_unconditional_one_is_reachable_where_a_ban_can_skip_that() -> None:
    text = """\
rules:
  - {id: ban, when: {stream: true}, ban: [speculative]}
  - {id: every, decide: {mode: speculative}}
  - {id: otherwise, decide: {mode: hybrid, standard_first: 3}}
"""

    assert len(parse(text).rules) == 3
    assert problems(text + "  - {id: again, when: {n: 2}, decide: {mode: speculative}}\n")


def test_an_unconditional_deny_ends_the_search() -> None:
    found = problems("rules:\n  - {id: closed, deny: x}\n  - {id: a, deny: y, when: {n: 2}}\n")

    assert "rule 'a' can never apply: 'closed' always comes first" in found[0]


def test_problems_come_in_the_order_of_the_file() -> None:
    found = problems("""\
rules:
  - {id: a, deny: x}
  - {id: b, decide: {mode: speculative, verifier: nope}}
  - {id: a, deny: x}
""")

    assert [problem[:8] for problem in found] == ["p.yaml:5", "p.yaml:5", "p.yaml:6", "p.yaml:6"]


def test_an_entropy_bound_is_enough_for_a_hybrid() -> None:
    (rule,) = parse("rules:\n  - {id: a, decide: {mode: hybrid, max_entropy: 1.5}}\n").rules

    assert rule.decision.max_entropy == 1.5
    assert rule.decision.standard_first == 0
