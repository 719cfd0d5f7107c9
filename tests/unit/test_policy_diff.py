"""``draftgate policy diff``: what two policies decide differently, in words."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.routing.comparison import Change, compare
from gateway.routing.effects import differences, is_looser
from gateway.routing.policy import Policy, parse_policy
from gateway.types import Decision, DraftSetting, Mode, SamplingLimits

OLD = """\
version: 1
name: p
rules:
  - {id: medical, when: {domain: {is: medical, min_probability: 0.1}}, ban: [speculative, hybrid]}
  - {id: code, when: {domain: {is: code, min_probability: 0.6}}, decide: {mode: speculative}}
"""


def parse(text: str = OLD) -> Policy:
    return parse_policy(text, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))


def changes(new: str, old: str = OLD) -> tuple[Change, ...]:
    return compare(parse(old), parse(new)).changes


def draftgate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["policy", *map(str, arguments)])


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(OLD)
    new.write_text(OLD.replace("0.1}", "0.25}"))
    return old, new


def test_a_raised_bar_is_said_in_words() -> None:
    (change,) = changes(OLD.replace("0.1}", "0.25}"))

    assert [str(effect) for effect in change.effects] == ["standard → speculative"]
    assert (change.old_rules, change.new_rules, change.looser) == (("medical",), ("code",), True)
    assert change.where == ("medical from 0.1 up to 0.25", "code from 0.6", "signals trusted")
    assert change.example["signals"] == {"medical": 0.1, "code": 0.6}
    assert (change.old.mode, change.new.mode) == (Mode.STANDARD, Mode.SPECULATIVE)


@pytest.mark.parametrize(
    ("added", "where"),
    [
        ("when: {language: {in: [de, fr]}}", "language de or fr"),
        ("when: {not: {language: {in: [de, fr]}}}", "language not de or fr"),
        ("when: {n: {min: 2, max: 4}}", "n 2 to 4"),
        ("when: {min_prompt_tokens: 50}", "prompt tokens from 50"),
        ("when: {team: {is: red}}", "team red"),
        ("when: {not: {caller: {is: ann}}}", "caller not ann"),
        ("when: {stream: true}", "stream true"),
        ("when: {header: {name: X-A, is: b}}", "header x-a b"),
        ("when: {regex: 'a+'}", "text that the regex a+ finds"),
        ("when: {not: {keyword: [a, b]}}", "no text with the keyword a or b"),
        ("when: {response_format: {is: json_schema}}", "response_format json_schema"),
        ("when: {domain: {is: legal}}", "most probable domain legal"),
        ("when: {time: {between: '09:00-10:00', weekdays: [tue]}}", "time such as Tue 09:00 UTC"),
        ("when: {model: {is: 'llama-*'}}", "model such as llama-"),
    ],
)
def test_every_condition_has_words(added: str, where: str) -> None:
    (change,) = changes(OLD + f"  - {{id: new, {added}, limit: {{max_tokens: 9}}}}\n")

    assert [str(effect) for effect in change.effects] == ["max_tokens none → 9"]
    assert change.looser is False
    assert change.where == (where,)


def test_moved_comments_and_renamed_rules_change_nothing() -> None:
    assert changes(OLD.replace("id: code", "id: programs") + "# the end\n") == ()


def test_a_rule_that_callers_may_choose_changes_only_for_those_who_ask() -> None:
    (change,) = changes(
        OLD.replace("{mode: speculative}}", "{mode: speculative}, caller_may_choose: true}")
    )

    assert change.requested_modes == ("hybrid",)
    assert [str(effect) for effect in change.effects] == ["speculative → hybrid"]
    assert change.example["request"] == {"requested_mode": "hybrid"}


def test_the_end_of_a_rule_is_a_change_after_its_last_day() -> None:
    new = OLD.replace(
        "decide: {mode: speculative}", "expires: 2026-03-31, decide: {mode: speculative}"
    )
    (change,) = changes(new)

    assert [str(effect) for effect in change.effects] == ["speculative → standard"]
    assert change.example["request"]["now"] > "2026-03-31"


STANDARD = Decision(mode=Mode.STANDARD, rule="r", policy="p", policy_hash="0")
FAST = Decision(mode=Mode.SPECULATIVE, rule="r", policy="p", policy_hash="0", draft=DraftSetting())
HYBRID = Decision(
    mode=Mode.HYBRID, rule="r", policy="p", policy_hash="0", draft=DraftSetting(), standard_first=9
)


@pytest.mark.parametrize(
    ("old", "new", "words", "looser"),
    [
        (STANDARD, HYBRID, "standard → hybrid", True),
        (HYBRID, FAST, "hybrid → speculative", True),
        (FAST, STANDARD, "speculative → standard", False),
        ({"deny": "no"}, STANDARD, "denied → allowed", True),
        (FAST, {"deny": "no"}, "allowed → denied", False),
        ({"deny": "no"}, {"deny": "never"}, "message 'no' → 'never'", False),
        ({}, {"max_distortion": 0.1}, "max_distortion none → 0.1", True),
        ({"verifier": "coupled"}, {"verifier": "rejection"}, "verifier coupled → rejection", False),
        ({"limits": (0.4, None)}, {"limits": (0.5, None)}, "max_temperature 0.4 → 0.5", True),
        ({"limits": (None, None)}, {"limits": (None, 9)}, "max_tokens none → 9", False),
        ({"limits": (None, 9)}, {"limits": (None, None)}, "max_tokens 9 → none", True),
        ({"backend": "a"}, {}, "backend a → any", False),
        (HYBRID, {"standard_first": 4}, "standard_first 9 → 4", True),
        (HYBRID, {"max_entropy": 2.0}, "max_entropy none → 2", False),
        (
            HYBRID,
            {"hybrid_fallback": Mode.SPECULATIVE},
            "hybrid_fallback standard → speculative",
            True,
        ),
        (HYBRID, {"content_tokens": Mode.STANDARD}, "content_tokens speculative → standard", False),
        (FAST, {"draft": DraftSetting("suffix", 4)}, "draft suffix of 8 → suffix of 4", False),
    ],
)
def test_what_is_looser(
    old: Decision | dict[str, object], new: Decision | dict[str, object], words: str, looser: bool
) -> None:
    base = old if isinstance(old, Decision) else STANDARD
    effects = differences(changed(base, old), changed(base, new))

    assert ", ".join(map(str, effects)) == words
    assert is_looser(effects) is looser


def changed(base: Decision, what: Decision | dict[str, object]) -> Decision:
    if isinstance(what, Decision):
        return what
    fields = {**{name: getattr(base, name) for name in base.__struct_fields__}, **what}
    if isinstance(fields["limits"], tuple):
        fields["limits"] = SamplingLimits(*fields["limits"])
    return Decision(**fields)


def test_diff_shows_changes_and_fails_only_when_asked(pair: tuple[Path, Path]) -> None:
    shown = draftgate("diff", *pair, "--examples")

    assert shown.exit_code == 0
    assert "looser  standard → speculative (was medical, now code)" in shown.stdout
    assert "medical from 0.1 up to 0.25; code from 0.6; signals trusted" in shown.stdout
    assert "signals: {code: 0.6, medical: 0.1}" in shown.stdout
    assert "1 change, 1 of them looser." in shown.stdout
    assert draftgate("diff", *pair, "--fail-on-looser").exit_code == 1
    assert draftgate("diff", *reversed(pair), "--fail-on-looser").exit_code == 0


def test_diff_prints_json(pair: tuple[Path, Path]) -> None:
    printed = json.loads(draftgate("diff", *pair, "--json").stdout)

    assert printed["looser"] is True
    assert printed["changes"][0]["effects"][0] == {
        "what": "mode",
        "old": "standard",
        "new": "speculative",
        "looser": True,
    }


def test_the_same_policy_has_no_change(pair: tuple[Path, Path]) -> None:
    result = draftgate("diff", pair[0], pair[0], "--fail-on-looser")

    assert result.exit_code == 0
    assert result.stdout == "No change: both decide every request alike.\n"


def test_a_wrong_file_is_bad_input(pair: tuple[Path, Path]) -> None:
    pair[1].write_text("version: 2\n")
    result = draftgate("diff", *pair)

    assert result.exit_code == 2
    assert "new.yaml:1:10: version: version 2 is not known" in result.stderr


@pytest.mark.parametrize(
    ("old", "new", "said", "looser"),
    [
        ((None, 0.4), (0.2, None), ["temperature at most 0.4 → 0.2"], False),
        ((None, 0.4), (0.5, None), ["temperature at most 0.4 → 0.5"], True),
        ((None, 0.4), (0.5, 0.4), ["temperature at most 0.4 → 0.4"], False),
        ((0.2, None), (None, 0.4), ["temperature 0.2 → at most 0.4"], True),
        ((0.2, 0.4), (0.2, None), [], False),
        ((0.5, 0.4), (0.5, None), ["temperature 0.4 → 0.5"], True),
    ],
)
def test_a_fixed_temperature_counts_as_it_is_applied(
    old: tuple[float | None, float | None],
    new: tuple[float | None, float | None],
    said: list[str],
    looser: bool,
) -> None:
    def decision(fixed: float | None, cap: float | None) -> Decision:
        limits = SamplingLimits(max_temperature=cap, temperature=fixed)
        return Decision(mode=Mode.STANDARD, rule="r", policy="p", policy_hash="", limits=limits)

    effects = differences(decision(*old), decision(*new))

    assert [str(effect) for effect in effects] == said
    assert is_looser(effects) is looser
