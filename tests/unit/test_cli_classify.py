from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.types import DOMAINS


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["classify", *arguments], input=stdin)


def test_the_table_shows_every_domain_the_language_and_the_context() -> None:
    result = run("Write a Python function that sorts a list of names.")

    assert result.exit_code == 0
    assert all(domain in result.output for domain in DOMAINS)
    assert "has_context" in result.output
    assert "language" in result.output
    domains = [line for line in result.output.splitlines() if line.startswith("domain")]
    assert domains[0].split()[1] == "code", "the most probable domain comes first"


def test_json_gives_signals_hashes_and_counts() -> None:
    signals = json.loads(run("hello", "--json").output)

    assert {one["value"] for one in signals["items"] if one["name"] == "domain"} == set(DOMAINS)
    assert {"context", "domain", "language"} <= set(signals["classifiers"])
    assert (signals["scored_tokens"], signals["total_tokens"]) == (5, 5)


def test_standard_input_and_a_request_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}))

    assert run("-", "--json", stdin="hello").output == run("--request", str(path), "--json").output


def test_standard_input_that_is_no_text_is_classified_all_the_same() -> None:
    assert run("-", stdin=b"\xff\xfe\x00\x80 what is the dose").exit_code == 0


@pytest.mark.parametrize("arguments", [[], ["text", "--request", "x.json"]])
def test_exactly_one_input_is_asked_for(arguments: list[str]) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert "give either TEXT" in result.output


def test_wrong_weights_are_named_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    path.write_text("no")

    result = run("hello", "--weights", str(path))

    assert result.exit_code == 2
    assert str(path) in result.output
    assert "Traceback" not in result.output
