"""Sets of policies, and policies that only tighten."""

import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.errors import ConfigError
from gateway.routing import proofs
from gateway.routing.decide import decide
from gateway.routing.policy import Policy, load, parse_policy
from gateway.routing.testing import given_signals
from gateway.types import (
    Caller,
    ChatRequest,
    Decision,
    Mode,
    RuleTrace,
    SamplingLimits,
    Signal,
    Signals,
)

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
SET = """\
version: 1
name: acme
policies: [base.yaml, code.yaml]
tighten: [red.yaml]
"""
BASE = """\
version: 1
name: base
on_truncated_input: {mode: standard, max_tokens: 7}
rules:
  - {id: medical, when: {domain: {is: medical, min_probability: 0.1}}, ban: [speculative, hybrid]}
  - id: support
    when: {domain: {is: customer_support}}
    decide: {mode: hybrid, standard_first: 3, max_temperature: 0.7}
"""
CODE = """\
version: 1
name: code
default: {mode: speculative, max_tokens: 50}
rules:
  - id: code
    when: {domain: {is: code}}
    decide: {mode: speculative}
    caller_may_choose: true
"""
RED = """\
version: 1
name: red-team
for: {team: {is: red}}
rules:
  - {id: red-finance, when: {domain: {is: finance, min_probability: 0.2}}, deny: Ask your desk.}
  - {id: red-code, when: {domain: {is: code}}, ban: [speculative], reason: Audited.}
  - {id: red-cool, limit: {max_temperature: 0.5, max_tokens: 80}}
"""
FILES = {"set.yaml": SET, "base.yaml": BASE, "code.yaml": CODE, "red.yaml": RED}


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def parse(files: Mapping[str, str] = FILES) -> Policy:
    return parse_policy(
        files["set.yaml"],
        "p/set.yaml",
        verifiers=("coupled",),
        draft_sources=("suffix",),
        read=lambda path: files[path.name],
    )


def choose(
    signals: Signals | dict[str, float],
    team: str | None = None,
    files: Mapping[str, str] = FILES,
    **request: Any,
) -> Decision:
    given = given_signals(signals) if isinstance(signals, dict) else signals
    asked = ChatRequest(**{"model": "m", "prompt": "x", **request})
    return decide(parse(files), given, asked, Caller("ann", team), prompt_tokens=9, now=NOW)


def summary(decision: Decision) -> tuple[str, str]:
    return decision.mode.value, decision.rule


def problems(files: Mapping[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse({**FILES, **files})
    return [str(problem) for problem in caught.value.problems]


def test_the_policies_of_a_set_are_read_as_one_in_its_order() -> None:
    policy = parse()

    assert policy.name == "acme"
    assert [rule.id for rule in policy.rules] == [
        "medical", "support", "code", "red-finance", "red-code", "red-cool",
    ]  # fmt: skip
    assert summary(choose({"customer_support": 0.9})) == ("hybrid", "support")
    assert summary(choose({"code": 0.9})) == ("speculative", "code")
    assert summary(choose({"code": 0.9, "medical": 0.2})) == ("standard", "medical")
    assert choose({"code": 0.9}).policy == "acme"


def test_each_block_comes_from_the_file_that_gives_it() -> None:
    policy = parse()

    assert (policy.default.mode, policy.default.limits.max_tokens) == (Mode.SPECULATIVE, 50)
    assert policy.on_truncated_input.limits.max_tokens == 7
    assert policy.on_classifier_error.mode is Mode.STANDARD


def test_a_folder_is_loaded_by_its_set(tmp_path: Path) -> None:
    policy = load(write(tmp_path, FILES))

    assert policy.path == str(tmp_path / "set.yaml")
    assert [Path(file.path).name for file in policy.files] == list(FILES)
    assert policy.text == SET
    assert load(tmp_path / "set.yaml").hash == policy.hash


def test_the_hash_of_a_set_is_that_of_what_sha256sum_prints_for_its_files(tmp_path: Path) -> None:
    files = {**FILES, "set.yaml": SET.replace("red.yaml", "teams/red.yaml"), "teams/red.yaml": RED}
    del files["red.yaml"]
    write(tmp_path, files)
    listing = "".join(
        f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in files.items()
    )

    assert load(tmp_path).hash == hashlib.sha256(listing.encode()).hexdigest()


@pytest.mark.parametrize("name", FILES)
def test_every_file_of_a_set_counts_for_its_hash(name: str) -> None:
    assert parse().hash != parse({**FILES, name: FILES[name] + "# a comment\n"}).hash


def test_a_set_can_be_read_again_from_the_texts_it_was_made_of() -> None:
    policy = parse()
    texts = {file.path: file.text for file in policy.files}
    again = parse_policy(
        policy.text,
        policy.path,
        verifiers=("coupled",),
        draft_sources=("suffix",),
        read=lambda path: texts[str(path)],
    )

    assert again.hash == policy.hash
    assert [rule.id for rule in again.rules] == [rule.id for rule in policy.rules]


def test_what_tightens_is_for_its_callers_alone() -> None:
    other, red = choose({"code": 0.9}), choose({"code": 0.9}, "red")

    assert (summary(other), other.bans, other.limits) == (
        ("speculative", "code"),
        {},
        SamplingLimits(),
    )
    assert summary(red) == ("standard", "red-code")
    assert red.bans == {"speculative": "red-code"}
    assert red.reason == "speculative is banned by red-code of red-team"
    assert red.limits == SamplingLimits(0.5, 80)
    assert other.trace[3:] == (
        RuleTrace("red-finance", "deny", False, "not for team none"),
        RuleTrace("red-code", "ban", False, "not for team none"),
        RuleTrace("red-cool", "limit", False, "not for team none"),
    )


def test_a_ban_that_tightens_never_lets_a_lower_rule_decide() -> None:
    """`support` stands above a ban on hybrid; were it passed over, the default would be faster."""
    files = {**FILES, "red.yaml": RED.replace("ban: [speculative]", "ban: [hybrid]")}
    decision = choose({"customer_support": 0.9, "code": 0.6}, "red", files)

    assert summary(decision) == ("hybrid", "support")  # code is not on top, so the ban is not met
    files = {
        **files,
        "red.yaml": files["red.yaml"].replace("when: {domain: {is: code}}, ban", "ban"),
    }
    decision = choose({"customer_support": 0.9, "code": 0.6}, "red", files)
    assert summary(decision) == ("standard", "red-code")
    assert decision.limits.max_temperature == 0.5


def test_a_limit_never_raises_what_was_lower() -> None:
    assert choose({}, "red").limits == SamplingLimits(0.5, 50)
    looser = {**FILES, "red.yaml": RED.replace("0.5, max_tokens: 80", "1.5, max_tokens: 800")}
    assert choose({"customer_support": 0.9}, "red", looser).limits == SamplingLimits(0.7, 800)


def test_a_refusal_that_tightens_refuses_whatever_decided() -> None:
    decision = choose({"code": 0.9, "finance": 0.3}, "red")

    assert summary(decision) == ("standard", "red-finance")
    assert decision.deny == "Ask your desk."
    assert choose({"code": 0.9, "finance": 0.3}).deny is None


def test_a_wish_does_not_lift_what_tightens() -> None:
    assert choose({"code": 0.9}, requested_mode=Mode.HYBRID).mode is Mode.HYBRID
    assert choose({"code": 0.9}, "red", requested_mode=Mode.SPECULATIVE).mode is Mode.STANDARD


def test_in_doubt_all_bans_and_limits_of_a_layer_hold() -> None:
    """Nobody gave the language that a layer's ban reads: it cannot be known not to match."""
    red = RED.replace("when: {domain: {is: code}}, ban", "when: {language: {is: de}}, ban")
    only_domains = Signals(given_signals({"code": 0.9}).items[:10], 1, 1)
    decision = choose(only_domains, "red", {**FILES, "red.yaml": red})

    assert decision.bans == {"speculative": "red-code"}
    assert decision.mode is Mode.STANDARD
    assert decision.trace[4].detail == "no classifier gave the signal language"
    assert choose(only_domains, None, {**FILES, "red.yaml": red}).mode is Mode.SPECULATIVE


@pytest.mark.parametrize(
    ("changes", "request_", "why"),
    [
        ({"total_tokens": 9}, {}, "only 1 of 9 tokens were scored"),
        ({"error": "late"}, {}, "classifier error: late"),
        (
            {"scored_tokens": 0, "total_tokens": 0},
            {"prompt": (1, 2, 3)},
            "a prompt of token ids, whose text was not scored",
        ),
        (
            {"items": (*given_signals({}).items, Signal("domain", "code", math.nan, "c"))},
            {},
            "the score of domain code is not a number",
        ),
    ],
)
def test_a_ban_of_a_layer_holds_where_its_signals_cannot_be_trusted(
    changes: dict[str, Any], request_: dict[str, Any], why: str
) -> None:
    blocks = "on_classifier_error: {mode: speculative}\non_truncated_input: {mode: speculative}\n"
    files = {**FILES, "code.yaml": blocks + CODE, "base.yaml": BASE.replace("on_trunc", "#")}
    signals = msgspec.structs.replace(given_signals({}), **changes)
    red = choose(signals, "red", files, **request_)

    assert summary(red) == ("standard", "red-code")
    assert red.trace[4] == RuleTrace("red-code", "ban", True, why)
    assert red.deny is None
    assert choose(signals, None, files, **request_).mode is Mode.SPECULATIVE


def test_a_signal_that_only_other_rules_read_leaves_a_layer_without_doubt(tmp_path: Path) -> None:
    """The language is missing, so `on_classifier_error` decides; red reads domains alone."""
    base = BASE.replace("on_truncated_input: {mode: standard, max_tokens: 7}", "{}")
    files = {
        **FILES,
        "base.yaml": base.replace("{}", "on_classifier_error: {mode: speculative}").replace(
            "{domain: {is: customer_support}}", "{language: {is: en}}"
        ),
    }
    folder = write(tmp_path, files)
    (folder / "set_proof.yaml").write_text(
        "statements: [{name: s, never: "
        "{when: {team: {is: red}}, classifier_error: true, mode: [speculative]}}]\n"
    )
    (verdict,) = proofs.run(load(folder), folder / "set_proof.yaml").verdicts

    assert verdict.counterexample is not None
    assert verdict.counterexample.assumes == ("no classifier gives the signal language",)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"red.yaml": RED + "  - {id: fast, decide: {mode: speculative}}\n"},
            ["p/red.yaml:8:16: rules[3]: 'decide' does not belong here "
             "(a policy that tightens may only `ban`, `limit` and `deny`)"],
        ),
        (
            {"red.yaml": RED.replace("reason: Audited.", "caller_may_choose: true")},
            ["p/red.yaml:6:68: rules[1]: 'caller_may_choose' does not belong here "
             "(a policy that tightens may only `ban`, `limit` and `deny`)"],
        ),
        (
            {"red.yaml": "default: {mode: hybrid}\n" + RED},
            ["p/red.yaml:1:1: 'default' does not belong here "
             "(a policy that tightens may only `ban`, `limit` and `deny`)"],
        ),
        ({"red.yaml": RED.replace("for: {team: {is: red}}\n", "")},
         ["p/red.yaml:1:1: missing field 'for' (add it)"]),
        ({"red.yaml": RED.replace("{team: {is: red}}", "{}")},
         ["p/red.yaml:3:6: for: nobody in it (give `caller` or `team`)"]),
        ({"red.yaml": RED.replace("max_temperature: 0.5, max_tokens: 80", "")},
         ["p/red.yaml:7:27: rules[2].limit: no limit in it "
          "(give `max_temperature`, `max_tokens` or `capture`)"]),
        (
            {"base.yaml": "default: {mode: standard}\n" + BASE},
            ["p/code.yaml:3:1: 'default' is given in base.yaml already (one file of a set gives it)"],
        ),
        (
            {"code.yaml": CODE.replace("id: code", "id: support")},
            ["p/code.yaml:5:9: a rule 'support' is already there (rename it)"],
        ),
        (
            {"red.yaml": RED.replace("red-cool", "code")},
            ["p/red.yaml:7:10: a rule 'code' is already there (rename it)"],
        ),
        (
            {"base.yaml": RED, "red.yaml": BASE},
            ["p/base.yaml:3:1: 'for' does not belong here (a policy that tightens is listed under "
             "`tighten` in a set.yaml, and read with it)",
             "p/red.yaml:1:1: missing field 'for' (add it)",
             "p/red.yaml:3:1: 'on_truncated_input' does not belong here (a policy that tightens may "
             "only `ban`, `limit` and `deny`)",
             "p/red.yaml:8:5: rules[1]: 'decide' does not belong here (a policy that tightens may "
             "only `ban`, `limit` and `deny`)"],
        ),
        ({"set.yaml": SET.replace("[base", "[base.yaml, base")},
         ["p/set.yaml:1:1: 'base.yaml' is listed twice (list each file once)"]),
        ({"set.yaml": SET.replace("[base", "[./base.yaml, base")},
         ["p/set.yaml:1:1: 'base.yaml' is listed twice (list each file once)"]),
        ({"set.yaml": SET.replace("code.yaml", '"a\\0.yaml"')},
         ["p/set.yaml:3:23: policies[1]: 'a\\x00.yaml' is no file's name "
          "(remove the control characters)"]),
        ({"set.yaml": SET.replace("code.yaml", "../code.yaml")},
         ["p/set.yaml:3:23: policies[1]: '../code.yaml' is no policy file of this folder "
          "(give its name, such as base.yaml)"]),
        ({"set.yaml": SET.replace("code.yaml", "a/set.yaml")},
         ["p/set.yaml:3:23: policies[1]: a set cannot hold a set (list the files of that one here)"]),
    ],
)  # fmt: skip
def test_a_set_that_is_wrong_is_refused_at_the_line(
    files: dict[str, str], expected: list[str]
) -> None:
    assert problems(files) == expected


def test_problems_of_all_files_come_at_once_in_the_order_of_the_set() -> None:
    found = problems({
        "base.yaml": BASE.replace("mode: hybrid,", "mode: hybird,"),
        "code.yaml": CODE.replace("is: code", "is: cod"),
        "red.yaml": RED.replace("team", "tem", 1).replace("for: {team", "for: {tem"),
    })  # fmt: skip

    assert [problem.partition(" ")[0] for problem in found] == [
        "p/base.yaml:8:20:", "p/code.yaml:6:25:", "p/red.yaml:3:6:", "p/red.yaml:3:7:",
    ]  # fmt: skip


def test_a_file_that_is_not_there_is_named_where_it_is_listed(tmp_path: Path) -> None:
    folder = write(tmp_path, {name: FILES[name] for name in ("set.yaml", "base.yaml", "red.yaml")})
    with pytest.raises(ConfigError) as caught:
        load(folder)

    assert str(caught.value) == (
        f"{folder}/set.yaml:3:23: code.yaml: no such file (check the path)"
    )


def test_a_folder_without_a_set_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no set.yaml in this folder \(list the files"):
        load(tmp_path)
