"""``draftgate policy prove``: statements, counterexamples, and rules without effect."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.errors import ConfigError
from gateway.routing import cells
from gateway.routing.abstraction import Space
from gateway.routing.analysis import DeadRule, Gap, analyse
from gateway.routing.cells import Search
from gateway.routing.files import beside
from gateway.routing.policy import Policy, load, parse_policy
from gateway.routing.proofs import run
from gateway.routing.testing import run as run_cases
from gateway.types import DOMAINS

ROOT = Path(__file__).parents[2]
PROOFS = sorted((ROOT / "policies").rglob("*_proof.yaml"))
POLICY = """\
version: 1
name: p
rules:
  - {id: medical, when: {domain: {is: medical, min_probability: 0.25}}, ban: [speculative, hybrid]}
  - {id: noted, when: {keyword: [dose]}, ban: [speculative]}
  - {id: code, when: {domain: {is: code}}, decide: {mode: speculative}, caller_may_choose: true}
  - {id: long, when: {min_prompt_tokens: 100}, decide: {mode: hybrid, standard_first: 3}}
"""


def parse(text: str = POLICY) -> Policy:
    return parse_policy(text, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))


def draftgate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["policy", *map(str, arguments)])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(POLICY)
    return tmp_path / "p.yaml"


def state(policy: Path, *statements: str) -> Path:
    path = beside(policy, "_proof")
    path.write_text(
        "statements:\n"
        + "".join(f"  - {{name: s{i}, {text}}}\n" for i, text in enumerate(statements))
    )
    return path


@pytest.mark.parametrize("path", PROOFS, ids=lambda path: path.stem)
def test_every_statement_about_a_shipped_policy_is_proved(path: Path) -> None:
    policy = load(path.with_name(path.name.replace("_proof", "")))
    report = run(policy, path)

    assert [verdict.name for verdict in report.verdicts if not verdict.proved] == []
    assert analyse(policy).dead_rules == ()


def test_the_shipped_policy_has_statements() -> None:
    assert ROOT / "policies" / "default_proof.yaml" in PROOFS


@pytest.mark.parametrize(
    "statement",
    [
        "never: {when: {domain: {is: medical, min_probability: 0.25}}, mode: [speculative, hybrid]}",
        "never: {when: {domain: {is: medical}}, mode: [speculative, hybrid]}",
        "never: {when: {keyword: [dose]}, mode: [speculative]}",
        "never: {when: {keyword: [DOSE, 'the dose']}, mode: [speculative]}",
        "always: {classifier_error: true, mode: [standard]}",
        "always: {requested_mode: [standard], mode: [standard]}",
        "never: {when: {not: {domain: {is: code}}}, requested_mode: [none], rule: [code]}",
        "always: {verifier: [coupled], denied: false, lossy: false}",
        "never: {when: {max_prompt_tokens: 99, not: {domain: {is: code}}}, mode: [hybrid]}",
    ],
)
def test_what_is_so_is_proved(files: Path, statement: str) -> None:
    report = run(parse(), state(files, statement))

    assert report.proved, report.verdicts[0].counterexample


@pytest.mark.parametrize(
    ("statement", "signals", "rule"),
    [
        (
            "never: {when: {domain: {is: medical, min_probability: 0.24}}, mode: [speculative]}",
            {"medical": 0.24, "code": 0.5},
            "code",
        ),
        (
            # Only where the caller asks for it.
            "never: {when: {all: [{domain: {is: code}}, {keyword: [dose]}]}, mode: [hybrid]}",
            {},
            "long",
        ),
        ("never: {when: {keyword: [other]}, mode: [speculative]}", {"code": 0.5}, "code"),
        (
            "always: {when: {domain: {is: code}}, requested_mode: [none], mode: [speculative]}",
            {"medical": 0.25, "code": 0.5},
            "medical",
        ),
        (
            "always: {when: {min_prompt_tokens: 100}, max_tokens: 9}",
            {},
            "medical",
        ),
    ],
)
def test_what_is_not_so_has_a_request_against_it_that_is_a_passing_case(
    files: Path, statement: str, signals: dict[str, float], rule: str
) -> None:
    verdict = run(parse(), state(files, statement)).verdicts[0]

    assert not verdict.proved
    assert verdict.counterexample is not None
    case = verdict.counterexample.case
    assert signals.items() <= case["signals"].items()
    assert case["expect"]["rule"] == rule
    cases = files.with_name("p_test.yaml")
    cases.write_text(yaml.safe_dump({"cases": [case]}, sort_keys=False))
    assert run_cases(parse(), cases).passed


def test_a_failed_classifier_and_text_that_was_not_scored_can_come_together(tmp_path: Path) -> None:
    policy = parse("version: 1\nname: p\non_classifier_error: {mode: speculative}\n")
    path = state(tmp_path / "p.yaml", "never: {truncated: true, mode: [speculative]}")

    (verdict,) = run(policy, path).verdicts

    assert verdict.counterexample is not None
    case = verdict.counterexample.case
    assert case["truncated"]
    assert case["classifier_error"]


def test_a_statement_about_no_request_is_not_proved(files: Path) -> None:
    """Code and medical cannot both be the most probable domain."""
    both = "{all: [{domain: {is: code}}, {domain: {is: medical}}]}"
    path = state(files, f"never: {{when: {both}, mode: [speculative]}}")
    (verdict,) = run(parse(), path).verdicts

    assert (verdict.proved, verdict.vacuous) == (False, True)
    result = draftgate("prove", files)
    assert result.exit_code == 1
    assert "SAYS NOTHING  s0: no request meets its conditions" in result.stdout


def test_a_text_that_cannot_be_made_up_is_assumed(files: Path) -> None:
    files.write_text(POLICY + "  - {id: icd, when: {regex: '^[0-9]{4}$'}, deny: No.}\n")
    path = state(files, "never: {denied: true}")
    (verdict,) = run(load(files), path).verdicts

    assert verdict.counterexample is not None
    assert verdict.counterexample.assumes == ("text that the regex ^[0-9]{4}$ finds",)
    assert (
        verdict.counterexample.decision.trace[-1].detail == "text that the regex ^[0-9]{4}$ finds"
    )
    assert verdict.counterexample.decision.trace[1].detail == "no text with the keyword dose"
    result = draftgate("prove", files)
    assert "# assuming text that the regex ^[0-9]{4}$ finds" in result.stdout


def test_rules_without_effect_are_named_with_what_comes_first() -> None:
    policy = parse(
        POLICY
        + "  - {id: never, when: {all: [{domain: {is: code}}, {domain: {is: legal}}]}, deny: No.}\n"
        + "  - {id: later, when: {min_prompt_tokens: 200}, decide: {mode: standard}}\n"
        + "  - id: barred\n"
        + "    when: {domain: {is: medical, min_probability: 0.5}, max_prompt_tokens: 9}\n"
        + "    decide: {mode: hybrid, standard_first: 1}\n"
        + "  - {id: again, when: {domain: {is: medical}}, ban: [hybrid]}\n"
    )
    dead = {rule.rule: rule for rule in analyse(policy).dead_rules}

    assert dead["never"] == DeadRule("never", "unreachable", ())
    assert dead["barred"] == DeadRule("barred", "banned", ("medical",))
    assert dead["again"] == DeadRule("again", "shadowed", ("medical",))
    # Medical requests may be long too: there `long` is banned, and `later` decides.
    assert set(dead) == {"never", "barred", "again"}


def test_a_rule_that_always_comes_after_another_names_it() -> None:
    policy = parse(
        POLICY.replace("decide: {mode: hybrid, standard_first: 3}", "deny: Too long.")
        + "  - {id: later, when: {min_prompt_tokens: 200}, decide: {mode: standard}}\n"
    )

    assert analyse(policy).dead_rules == (DeadRule("later", "shadowed", ("long", "code")),)


def test_domains_that_no_rule_speaks_of_are_gaps() -> None:
    gaps = {gap.domain: gap for gap in analyse(parse()).gaps}

    assert "medical" not in gaps
    assert gaps["legal"] == Gap("legal", always=False)
    assert analyse(parse("version: 1\nname: p\n")).gaps == ()


def test_a_policy_that_is_too_large_is_refused_by_name(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state(files, "never: {denied: true}")
    monkeypatch.setattr(cells, "MAX_STATES", 3)
    result = draftgate("prove", files)

    assert result.exit_code == 2
    assert "too large to prove: more than 3 states" in result.stderr
    assert "let rules share bars" in result.stderr


def test_many_limits_on_conditions_of_every_kind_stay_within_reach() -> None:
    """What the limits leave is one pair of caps, however many of them hold."""
    analysis = analyse(load(ROOT / "examples" / "policies" / "conditions.yaml"))

    assert analysis.dead_rules == ()


def test_prove_prints_json(files: Path) -> None:
    state(files, "never: {denied: true}", "never: {mode: [hybrid]}")
    result = draftgate("prove", files, "--json")
    printed = json.loads(result.stdout)

    assert result.exit_code == 1
    assert printed["proved"] is False
    assert [verdict["proved"] for verdict in printed["verdicts"]] == [True, False]
    assert printed["verdicts"][1]["counterexample"]["decision"]["mode"] == "hybrid"
    assert printed["analysis"]["dead_rules"] == []


def test_without_statements_only_the_analysis_can_be_had(files: Path) -> None:
    missing = draftgate("prove", files)
    analysis = draftgate("prove", files, "--analysis")

    assert missing.exit_code == 2
    assert "p_proof.yaml: no such file" in missing.stderr
    assert analysis.exit_code == 0
    assert "default may decide: legal" in analysis.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("never: {when: {stream: true}}", "statements[0].never: says nothing of the decision"),
        ("never: {rule: [cod]}", "the policy has no rule 'cod' (did you mean 'code'?)"),
        ("never: {verifier: [typicl]}", "unknown verifier 'typicl' (did you mean 'typical'?)"),
        ("never: {draft_source: [sufix]}", "unknown draft source 'sufix' (did you mean 'suffix'?)"),
        ("never: {mode: [fast]}", "unknown value 'fast'"),
        ("never: {denied: true}, always: {denied: true}", "needs exactly one of `never`"),
        ("never: {max_tokens: 4}", "unknown field 'max_tokens'"),
    ],
)
def test_a_wrong_statement_is_bad_input(files: Path, text: str, message: str) -> None:
    state(files, text)
    result = draftgate("prove", files)

    assert result.exit_code == 2
    assert message in result.stderr


def test_a_backend_in_a_statement_is_one_that_there_is(files: Path) -> None:
    path = state(files, "never: {backend: [locl]}")

    assert run(parse(), path).proved
    with pytest.raises(ConfigError, match="unknown backend 'locl'"):
        run(parse(), path, backends={"local"})


def test_forty_rules_with_three_bars_for_each_of_ten_domains_are_within_reach() -> None:
    """Each rule reads two domains between bars; a hundredth of the four million combinations of bars
    would be too many to list."""
    bars = (0.1, 0.4, 0.7)
    rules = []
    for i in range(40):
        first, second = DOMAINS[i % 10], DOMAINS[(3 * i + 1 + i // 10) % 10]
        low, high = bars[i % 3], bars[(i + 1) % 3]
        when = (
            f"{{all: [{{domain: {{is: {first}, min_probability: {low}}}}},"
            f" {{not: {{domain: {{is: {second}, min_probability: {high}}}}}}}]}}"
        )
        action = ("ban: [speculative]", "ban: [hybrid]", "decide: {mode: speculative}")[i % 3]
        rules.append(f"  - {{id: r{i}, when: {when}, {action}}}\n")
    policy = parse("version: 1\nname: p\nrules:\n" + "".join(rules))
    search = Search(Space((policy,)), (policy,))

    assert len(list(search.cells())) > 50
    assert len(search.nodes) < cells.MAX_STATES / 10
