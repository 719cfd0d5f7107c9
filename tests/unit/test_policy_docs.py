"""The examples in docs/policies.md work as they stand."""

import re
from pathlib import Path

import pytest

from gateway import documents
from gateway.cli.policy import policy as policy_commands
from gateway.routing.cases import CaseFile
from gateway.routing.files import TESTS, beside
from gateway.routing.policy import load, parse_policy
from gateway.routing.testing import run
from gateway.routing.when import When

CONDITIONS = {name.rstrip("_") for name in When.__struct_fields__}
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"( *)```(\w+)\n(.*?)\n *```", TEXT, re.DOTALL)


def blocks(language: str) -> list[str]:
    return [
        re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
        for indent, kind, body in BLOCKS
        if kind == language
    ]


def test_the_tutorial_bans_a_domain_and_its_case_holds(tmp_path: Path) -> None:
    rule, case = blocks("yaml")[:2]
    text = (ROOT / "policies" / "default.yaml").read_text(encoding="utf-8") + rule + "\n"
    cases = (ROOT / "policies" / "default_test.yaml").read_text(encoding="utf-8") + case + "\n"
    path = tmp_path / "mine_test.yaml"
    path.write_text(cases, encoding="utf-8")
    policy = parse_policy(text, "mine.yaml", verifiers=("coupled",), draft_sources=("suffix",))
    report = run(policy, path)

    assert report.passed
    assert report.uncovered == ()
    details = {trace.rule: trace.detail for trace in report.results[-1].decision.trace}  # type: ignore[union-attr]
    assert details["code"] == "domain code 0.9 >= 0.6; speculative is banned by finance"
    assert details["code"] in TEXT
    assert details["other-languages"] in TEXT


def test_the_example_of_cases_is_a_valid_test_file() -> None:
    example = next(block for block in blocks("yaml") if block.startswith("fixtures:"))

    assert documents.convert(documents.parse(example, "docs"), CaseFile).cases


def test_every_example_in_the_reference_is_a_condition_that_works() -> None:
    page = (ROOT / "docs" / "policy-reference.md").read_text(encoding="utf-8")
    table = page.partition("## Conditions")[2].partition("\n## ")[0]
    examples = [
        example
        for line in table.splitlines()
        if line.startswith("| `")
        for example in re.findall(r"`([^`]+)`", line.split(" | ")[0])
    ]

    assert {example.partition(":")[0] for example in examples} == CONDITIONS
    for example in examples:
        assert documents.convert(documents.parse(example, "docs"), When)


def test_every_condition_is_shown_to_hold_and_to_fail() -> None:
    path = ROOT / "examples" / "policies" / "conditions.yaml"
    policy = load(path)
    report = run(policy, beside(path, TESTS))
    used = {
        name.rstrip("_")
        for rule in policy.rules
        for name in When.__struct_fields__
        if getattr(rule.when, name) is not None
    }

    assert used == CONDITIONS
    assert [
        (result.name, result.differences) for result in report.results if not result.passed
    ] == []
    assert report.uncovered == ()
    assert {result.name for result in report.results} == {
        f"{rule.id} {word}" for rule in policy.rules for word in ("holds", "fails")
    }


def test_the_example_of_a_set_is_valid_and_tightens(tmp_path: Path) -> None:
    for text in blocks("yaml"):
        if text.startswith("# policies/"):
            (tmp_path / text.splitlines()[0].rpartition("/")[2]).write_text(text, encoding="utf-8")
    base = (ROOT / "policies" / "default.yaml").read_text(encoding="utf-8")
    (tmp_path / "base.yaml").write_text(base, encoding="utf-8")
    (tmp_path / "code.yaml").write_text("version: 1\nname: code\n", encoding="utf-8")
    policy = load(tmp_path)

    assert [layer.name for layer in policy.layers] == ["red-team"]
    assert [Path(file.path).name for file in policy.files] == [
        "set.yaml", "base.yaml", "code.yaml", "red-team.yaml",
    ]  # fmt: skip


def test_every_recipe_is_a_rule_of_the_default_policy(tmp_path: Path) -> None:
    recipes = TEXT.partition("## Recipes")[2].partition("\n## ")[0]
    rules = re.findall(r"```yaml\n(.*?)\n```", recipes, re.DOTALL)
    text = (
        (ROOT / "policies" / "default.yaml").read_text(encoding="utf-8") + "\n".join(rules) + "\n"
    )
    policy = parse_policy(text, "mine.yaml", verifiers=("coupled",), draft_sources=("suffix",))

    assert [rule.id for rule in policy.rules[-4:]] == ["night", "pilot", "money", "batch"]


def test_every_command_and_option_that_is_documented_is_there() -> None:
    options = {
        option
        for command in policy_commands.commands.values()
        for p in command.params
        for option in p.opts
    }
    named = set(re.findall(r"draftgate policy (\w+)", TEXT))

    assert named <= set(policy_commands.commands)
    assert set(re.findall(r"`(--[a-z-]+)", TEXT)) <= options


def test_the_python_example_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    exec(blocks("python")[0], {})

    assert capsys.readouterr().out == "speculative code\n"
