"""The examples in docs/proofs.md work as they stand."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
DEFAULT = ROOT / "policies" / "default.yaml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)\n```$", TEXT, re.DOTALL | re.MULTILINE)


def output(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["policy", *map(str, arguments)])
    return result.exit_code, result.stdout


def test_the_statements_are_proved_but_for_the_one_that_is_shown_to_be_false(
    tmp_path: Path,
) -> None:
    statements = tmp_path / "example_proof.yaml"
    statements.write_text(blocks("yaml")[0], encoding="utf-8")
    code, shown = output("prove", DEFAULT, "--statements", statements)

    assert code == 1
    assert blocks("text")[0] in shown
    assert "2 of 3 statements proved" in shown


def test_the_raised_bar_changes_what_the_page_says(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    text = DEFAULT.read_text(encoding="utf-8")
    mine.write_text(
        text.replace("medical, min_probability: 0.10", "medical, min_probability: 0.25")
    )
    code, shown = output("diff", DEFAULT, mine)

    assert code == 0
    assert blocks("text")[1] in shown


@pytest.mark.parametrize("command", ["prove", "diff", "replay"])
def test_every_option_is_on_the_page(command: str) -> None:
    from gateway.cli.policy import policy

    options = {option for each in policy.commands[command].params for option in each.opts}

    for option in options:
        if option.startswith("--"):
            assert f"`{option}" in TEXT or f" {option} " in TEXT, option
