"""JSON Schema and Markdown tables of the policy language, made from the structs that read it.

What a struct checks with code of its own (one of two keys, a budget with its permission) is in the
schema only where the schema can say it; `load` has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway import documents
from gateway.routing.cases import Case, CaseFile, Expectation, RequestEntry
from gateway.routing.layers import SET_FILE, Audience, SetEntry, TighteningEntry, TighteningRule
from gateway.routing.schema import Decide, DraftChoice, Limit, PolicyEntry, RuleEntry
from gateway.routing.statements import Always, Never, ProofFile, Statement
from gateway.routing.when import When

KINDS: Mapping[str, type[msgspec.Struct]] = {
    "policy": PolicyEntry,
    "test": CaseFile,
    "proof": ProofFile,
    "set": SetEntry,
    "tighten": TighteningEntry,
}
"""The kinds of files, and what each is read as."""

_ONE_OF = {
    "RuleEntry": ("ban", "limit", "decide", "deny"),
    "TighteningRule": ("ban", "limit", "deny"),
    "Statement": ("never", "always"),
    "OneOf": ("is", "in"),
    "DomainTest": ("is", "in"),
    "HeaderTest": ("is", "in"),
}
_PREFACE = """\
# Policy reference

Every key of every file that makes a policy, with the values that examples in code style show.
This page is printed by `draftgate policy schema --markdown`; [Policies](policies.md) explains it.
"""
_SECTIONS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("A policy file", PolicyEntry),
    ("Rules", RuleEntry),
    ("Decide blocks", Decide),
    ("`draft`", DraftChoice),
    ("`limit`", Limit),
    ("Conditions", When),
    ("A set file", SetEntry),
    ("A policy that tightens", TighteningEntry),
    ("`for`", Audience),
    ("Rules that tighten", TighteningRule),
    ("A test file", CaseFile),
    ("Cases", Case),
    ("`request`", RequestEntry),
    ("`expect`", Expectation),
    ("A proof file", ProofFile),
    ("Statements", Statement),
    ("`never` and `always`", Never),
    ("`always` alone", Always),
)


def json_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of one kind of file, for editors."""
    (schema,), components = msgspec.json.schema_components(
        [KINDS[kind]], ref_template="#/$defs/{name}"
    )
    for name, component in components.items():
        if component.get("type") == "object" and "properties" in component:
            component["additionalProperties"] = False
        if name in _ONE_OF:
            component["oneOf"] = [{"required": [key]} for key in _ONE_OF[name]]
        if ban := component.get("properties", {}).get("ban"):
            ban["anyOf"][0]["items"] = {"enum": ["speculative", "hybrid"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Draftgate {kind} file",
        **schema,
        "$defs": {name: _plain(component, components) for name, component in components.items()},
    }


def json_text(kind: str) -> str:
    """The schema as a file."""
    return msgspec.json.format(msgspec.json.encode(json_schema(kind)), indent=2).decode() + "\n"


def markdown() -> str:
    """The reference: a table for every mapping that a file may hold."""
    sections = (f"## {title}\n\n{_table(struct)}" for title, struct in _SECTIONS)
    return "\n".join((_PREFACE, *sections))


def _plain(schema: Any, components: Mapping[str, Any]) -> Any:
    """The schema without ``null``, for a key is given a value or left out, and without defaults
    that say nothing."""
    if isinstance(schema, list):
        return [_plain(part, components) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _plain(value, components) for key, value in schema.items() if key != "default"}
    if "properties" in schema:  # keys of the files, among them `default`: no words of the schema's
        keys = schema["properties"].items()
        found["properties"] = {key: _plain(value, components) for key, value in keys}
    default = _plain_default(schema, components)
    if default not in (None, [], (), {}, ""):
        found["default"] = default
    kept = [choice for choice in found.get("anyOf", ()) if choice != {"type": "null"}]
    if len(kept) == 1:
        del found["anyOf"]
        return {**kept[0], **found}
    return {**found, "anyOf": kept} if kept else found


def _plain_default(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Any:
    """The default; of a mapping, only what is not the default of its own keys."""
    default = schema.get("default")
    if not isinstance(default, dict) or "$ref" not in schema:
        return default
    keys = components[schema["$ref"].rpartition("/")[2]]["properties"]
    return {key: value for key, value in default.items() if value != keys[key].get("default", ...)}


def _table(struct: type[msgspec.Struct]) -> str:
    rows = "".join(f"| {name} | {meaning} |\n" for name, meaning in _rows(struct))
    return f"| key | meaning |\n|---|---|\n{rows}"


def _rows(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    (_,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    component = components[struct.__name__]
    required = component.get("required", ())
    for name, given in component["properties"].items():
        examples = given.get("examples") or (None,)
        keys = ", ".join(f"`{_written(name, example)}`" for example in examples)
        yield keys, _meaning(_plain(given, components), name in required, components)


def _written(name: str, example: Any) -> str:
    if example is None:
        return name
    text = yaml.safe_dump(
        {name: example}, default_flow_style=True, width=1000, sort_keys=False, allow_unicode=True
    )
    return text.strip()[1:-1]


def _meaning(given: Mapping[str, Any], required: bool, components: Mapping[str, Any]) -> str:
    parts = [given.get("description", "")]
    if choices := _choices(given, components):
        parts.append(", ".join(f"`{choice}`" for choice in choices))
    if bounds := _bounds(given):
        parts.append(bounds)
    default = given.get("default")
    if required:
        parts.append("required")
    elif default is not None and default is not False:
        parts.append(f"`{_written('x', default)[3:]}` if left out")
    return "; ".join(filter(None, parts))


def _choices(given: Mapping[str, Any], components: Mapping[str, Any]) -> tuple[str, ...]:
    if "$ref" in given:
        given = components[given["$ref"].rpartition("/")[2]]
    return tuple(map(str, given.get("enum", ())))


def _bounds(given: Mapping[str, Any]) -> str:
    signs = {
        "exclusiveMinimum": "above",
        "minimum": "at least",
        "exclusiveMaximum": "below",
        "maximum": "at most",
    }
    return ", ".join(f"{word} {given[key]:g}" for key, word in signs.items() if key in given)


def kind_of(path: Path, text: str) -> str:
    """Which kind of file this is, by its name and, for a policy that tightens, its ``for``."""
    if path.name == SET_FILE:
        return "set"
    for kind in ("test", "proof"):
        if path.stem.endswith(f"_{kind}"):
            return kind
    return "tighten" if documents.parse(text, path).has(("for",)) else "policy"
