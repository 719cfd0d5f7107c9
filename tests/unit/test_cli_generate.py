"""What ``draftgate generate`` makes of its options, before any model is loaded."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.generate import _grammar, generate
from gateway.errors import InvalidRequest
from gateway.types import Grammar


def test_a_schema_comes_from_a_file_and_a_pattern_from_the_line(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "integer"}')

    assert _grammar(path, None) == Grammar("json_schema", '{"type": "integer"}', "--json-schema")
    assert _grammar(None, "a|é") == Grammar("regex", "a|é", "--regex")
    assert _grammar(None, None) is None


def test_only_one_of_them_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text("{}")

    with pytest.raises(InvalidRequest, match="give one"):
        CliRunner().invoke(
            generate,
            ["Hi.", "--regex", "a", "--json-schema", str(path)],
            standalone_mode=False,
            catch_exceptions=False,
        )


def test_a_schema_that_is_not_there_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    result = CliRunner().invoke(generate, ["Hi.", "--json-schema", str(tmp_path / "none.json")])

    assert result.exit_code == 2
    assert "does not exist" in result.output
