"""The examples in docs/policies.md work as they stand."""

import re
from pathlib import Path

import pytest

from gateway import documents
from gateway.routing.cases import CaseFile
from gateway.routing.policy import parse_policy
from gateway.routing.testing import run
from gateway.routing.when import When

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


def test_the_example_of_cases_is_a_valid_test_file() -> None:
    example = next(block for block in blocks("yaml") if block.startswith("cases:"))

    assert documents.convert(documents.parse(example, "docs"), CaseFile).cases


def test_every_condition_is_documented_and_every_documented_one_works() -> None:
    table = TEXT.partition("## Conditions")[2].partition("\n- ")[0]
    examples = [
        example
        for line in table.splitlines()
        if line.startswith("| `")
        for example in re.findall(r"`([^`]+)`", line.split(" | ")[0])
    ]
    documented = {example.partition(":")[0] for example in examples}

    assert documented == {name.rstrip("_") for name in When.__struct_fields__}
    for example in examples:
        if "..." not in example:
            assert documents.convert(documents.parse(example, "docs"), When)


def test_the_python_example_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    exec(blocks("python")[0], {})

    assert capsys.readouterr().out == "speculative code\n"
