"""Schemas and reference say what the structs say, and the schemas judge files as the loader does."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from gateway.cli import main
from gateway.routing.reference import KINDS, json_schema, json_text, kind_of, markdown

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "policies"
SHIPPED = sorted(POLICIES.glob("*.yaml"))
BEYOND_A_SCHEMA = {
    "always_banned_mode",
    "anchor_and_alias",
    "bad_dates",  # `format` is a note to people unless a validator is told otherwise
    "bad_patterns",
    "duplicate_key",
    "lossy_verifiers",
    "merge_key",
    "modes_and_their_settings",
    "repeated_id_across",
    "shadow_rate",
    "syntax",
    "tab",
    "tag",
    "two_documents",
    "unreachable_rule",
    "unregistered",
}
"""Broken policies that a schema cannot find fault with, or that are no YAML."""


def errors(kind: str, content: Any) -> list[str]:
    schema = jsonschema.Draft202012Validator(json_schema(kind))
    return [error.message for error in schema.iter_errors(content)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_schema_is_fresh_and_valid(kind: str) -> None:
    path = POLICIES / f"{kind}.schema.json"

    assert path.read_text(encoding="utf-8") == json_text(kind), (
        f"run: draftgate policy schema --kind {kind} > policies/{kind}.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


def test_the_shipped_reference_is_fresh() -> None:
    page = (ROOT / "docs" / "policy-reference.md").read_text(encoding="utf-8")

    assert page == markdown(), "run: draftgate policy schema --markdown > docs/policy-reference.md"


def test_the_commands_print_both() -> None:
    run = CliRunner().invoke

    assert run(main, ["policy", "schema"]).stdout == json_text("policy")
    assert run(main, ["policy", "schema", "--kind", "set"]).stdout == json_text("set")
    assert run(main, ["policy", "schema", "--markdown"]).stdout == markdown()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_file_names_its_schema_and_holds_to_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    kind = kind_of(path, text)

    assert text.startswith(f"# yaml-language-server: $schema={kind}.schema.json\n")
    assert errors(kind, yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "tests" / "data" / "broken_policies").glob("*.yaml")),
    ids=lambda path: path.stem,
)
def test_the_schema_refuses_what_the_loader_refuses_where_it_can(path: Path) -> None:
    if path.stem not in BEYOND_A_SCHEMA:
        assert errors("policy", yaml.safe_load(path.read_text(encoding="utf-8")))


def test_a_key_that_only_describes_others_is_in_no_way_required() -> None:
    schema = json_schema("policy")["$defs"]

    assert schema["PolicyEntry"]["required"] == ["version", "name"]
    assert schema["RuleEntry"]["properties"]["ban"]["items"] == {"enum": ["speculative", "hybrid"]}
    assert "null" not in json_text("policy").replace("nullable", "")
    assert all(
        "description" in key
        for struct in schema.values()
        for key in struct.get("properties", {}).values()
    )


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("set.yaml", "", "set"),
        ("a_test.yaml", "", "test"),
        ("a.yaml", "for: {team: {is: a}}", "tighten"),
        ("a.yaml", "name: a", "policy"),
    ],
)
def test_the_kind_of_a_file_is_told_by_its_name_and_its_keys(
    name: str, text: str, kind: str
) -> None:
    assert kind_of(Path(name), text) == kind
