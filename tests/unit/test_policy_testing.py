from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.routing.files import TESTS, beside
from gateway.routing.policy import Policy, parse_policy
from gateway.routing.testing import Report, given_signals, run
from gateway.types import ChatRequest, Signals

ROOT = Path(__file__).parents[2]
POLICY = """\
version: 1
name: p
rules:
  - {id: medical, ban: [speculative], when: {domain: {is: medical, min_probability: 0.1}}}
  - {id: code, decide: {mode: speculative}, when: {domain: {is: code, min_probability: 0.6}}}
  - {id: night, decide: {mode: hybrid, standard_first: 3}, when: {time: {between: 22:00-06:00}}}
  - {id: red, deny: No., when: {all: [{team: {is: red}}, {header: {name: x-a, is: b}}]}}
"""


def policy() -> Policy:
    return parse_policy(POLICY, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))


def report(tmp_path: Path, cases: str, **options: object) -> Report:
    path = tmp_path / "p_test.yaml"
    path.write_text(f"cases:\n{cases}", encoding="utf-8")
    return run(policy(), path, **options)  # type: ignore[arg-type]


def test_the_shipped_policy_passes_its_own_tests_which_reach_every_rule() -> None:
    path = ROOT / "policies" / "default.yaml"
    shipped = parse_policy(
        path.read_text(encoding="utf-8"), path, verifiers=("coupled",), draft_sources=("suffix",)
    )
    result = run(shipped, beside(path, TESTS))

    assert [(case.name, case.differences) for case in result.results if not case.passed] == []
    assert result.uncovered == ()
    assert len(result.results) >= 30


def test_cases_that_hold_pass(tmp_path: Path) -> None:
    result = report(
        tmp_path,
        """\
  - {name: a, signals: {code: 0.9}, expect: {mode: speculative, rule: code, draft_source: suffix}}
  - {name: b, signals: {medical: 0.2, code: 0.9}, expect: {mode: standard, rule: medical}}
  - name: c
    request: {now: 2026-01-05T23:00:00Z}
    expect: {mode: hybrid, rule: night, standard_first: 3}
  - name: d
    request: {team: red, headers: {X-A: b}}
    expect: {mode: standard, rule: red, deny: No.}
  - {name: e, signals: {code: 1}, truncated: true, expect: {mode: standard, rule: on_truncated_input}}
  - {name: f, classifier_error: x, expect: {mode: standard, rule: on_classifier_error}}
""",
    )

    assert result.passed, result
    assert result.uncovered == ()


def test_a_case_that_fails_says_what_differs_and_keeps_the_trace(tmp_path: Path) -> None:
    result = report(
        tmp_path,
        """\
  - name: a
    signals: {code: 0.5, medical: 0.2}
    expect: {mode: speculative, rule: code, draft_source: suffix, bans: [hybrid]}
""",
    )

    assert not result.passed
    assert result.results[0].differences == (
        "mode: expected speculative, got standard",
        "rule: expected code, got medical",
        "draft_source: expected suffix, got none",
        "bans: expected [hybrid], got [speculative]",
    )
    assert result.results[0].decision is not None
    assert result.results[0].decision.trace[1].detail == "domain code 0.5 < 0.6"
    assert result.uncovered == ("medical", "code", "night", "red")


def test_a_refusal_that_was_not_expected_fails(tmp_path: Path) -> None:
    result = report(
        tmp_path,
        """\
  - name: a
    request: {team: red, headers: {x-a: b}}
    expect: {mode: standard, rule: red}
""",
    )

    assert result.results[0].differences == ("deny: expected none, got No.",)


def test_a_rule_that_was_passed_over_is_not_covered(tmp_path: Path) -> None:
    result = report(
        tmp_path,
        "  - {name: a, signals: {code: 1, medical: 1}, expect: {mode: standard, rule: medical}}\n",
    )

    assert result.passed
    assert result.uncovered == ("code", "night", "red")


TEXT_CASE = """\
  - name: a
    request: {messages: [{content: some code}]}
    expect: {mode: speculative, rule: code}
"""


def test_text_without_signals_is_classified(tmp_path: Path) -> None:
    seen: list[ChatRequest] = []

    def classify(request: ChatRequest) -> Signals:
        seen.append(request)
        return given_signals({"code": 0.9})

    assert report(tmp_path, TEXT_CASE, classify=classify).passed
    assert seen[0].texts() == ("some code",)


def test_text_cannot_be_classified_without_a_classifier(tmp_path: Path) -> None:
    result = report(tmp_path, TEXT_CASE)

    assert "give it `signals`" in result.results[0].differences[0]
    assert result.results[0].decision is None


def test_given_signals_win_over_the_text(tmp_path: Path) -> None:
    def classify(request: ChatRequest) -> Signals:
        raise AssertionError("not to be asked")

    text = TEXT_CASE.replace("    request", "    signals: {code: 0.9}\n    request")

    assert report(tmp_path, text, classify=classify).passed


def test_a_given_context_replaces_the_measured_one(tmp_path: Path) -> None:
    text = POLICY + "  - {id: ctx, deny: c, when: {has_context: true}}\n"
    loaded = parse_policy(text, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))
    path = tmp_path / "p_test.yaml"
    path.write_text("""\
cases:
  - name: a
    request: {prompt: text}
    has_context: true
    expect: {mode: standard, rule: ctx, deny: c}
""")

    assert run(loaded, path, lambda request: given_signals({}, has_context=False)).passed


def test_a_fixture_is_below_what_the_case_says(tmp_path: Path) -> None:
    path = tmp_path / "p_test.yaml"
    path.write_text("""\
fixtures:
  red-code: {signals: {code: 0.9}, request: {team: red, headers: {x-a: b}, n: 2}}
cases:
  - {name: a, fixture: red-code, signals: {code: 0.1}, expect: {mode: standard, rule: red, deny: No.}}
  - {name: b, fixture: red-code, request: {team: blue}, expect: {mode: speculative, rule: code}}
  - name: c
    fixture: red-code
    signals: {medical: 0.5}
    request: {headers: {x-a: c}}
    expect: {mode: standard, rule: medical, bans: [speculative], verifier: coupled, backend: none}
""")
    result = run(policy(), path)

    assert result.passed, result


def test_limits_can_be_expected(tmp_path: Path) -> None:
    text = POLICY + "  - {id: cool, limit: {max_temperature: 0.4, max_tokens: 9}}\n"
    loaded = parse_policy(text, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))
    path = tmp_path / "p_test.yaml"
    path.write_text("""\
cases:
  - {name: a, expect: {mode: standard, rule: default, max_temperature: 0.4, max_tokens: 8}}
""")
    result = run(loaded, path)

    assert result.results[0].differences == ("max_tokens: expected 8, got 9",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "fixtures: {a: {}}\ncases: [{name: a, fixture: b, expect: {mode: standard, rule: code}}]",
            "p_test.yaml:2:28: there is no fixture 'b' (known: a)",
        ),
        (
            "fixtures: {a: {}}\ncases: [{name: a, expect: {mode: standard, rule: code}}]",
            "p_test.yaml:1:12: no case uses the fixture 'a' (remove it)",
        ),
        (
            "fixtures: {a: {request: {prompt: x}}}\ncases: [{name: a, fixture: a, "
            "request: {messages: [{content: x}]}, expect: {mode: standard, rule: code}}]",
            "p_test.yaml:2:9: with its fixture, the case has both `messages` and `prompt`",
        ),
        ("", "p_test.yaml:1:1: missing field 'cases'"),
        ("cases: []", "p_test.yaml:1:8: cases: expected at least 1 in it, got 0"),
        ("cases: [{name: a}]", "cases[0]: missing field 'expect'"),
        (
            "cases: [{name: a, expect: {mode: standard, rule: cod}}]",
            "the policy has no rule 'cod' (did you mean 'code'?)",
        ),
        (
            "cases: [{name: a, signals: {cod: 1}, expect: {mode: standard, rule: code}}]",
            "unknown domain 'cod' (did you mean 'code'?)",
        ),
        (
            "cases: [{name: a, signals: {code: 1.1}, expect: {mode: standard, rule: code}}]",
            "expected float <= 1.0, got 1.1",
        ),
        (
            "cases:\n- {name: a, expect: {mode: standard, rule: code}}\n"
            "- {name: a, expect: {mode: standard, rule: code}}",
            "p_test.yaml:3:10: a case 'a' is already there",
        ),
        (
            "cases: [{name: a, request: {prompt: x, messages: [{content: y}]}, "
            "expect: {mode: standard, rule: code}}]",
            "has both `messages` and `prompt`",
        ),
    ],
)
def test_a_test_file_that_is_wrong_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "p_test.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        run(policy(), path)
    assert expected in str(caught.value)


def test_a_missing_test_file_is_named(tmp_path: Path) -> None:
    place = beside(tmp_path / "my.policy.yaml", TESTS)

    assert place.name == "my.policy_test.yaml"
    with pytest.raises(ConfigError, match=r"my.policy_test.yaml: no such file"):
        run(policy(), place)
