"""``draftgate policy fmt``: one layout, every comment kept, nothing said otherwise."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import documents
from gateway.documents.layout import _comments, laid_out
from gateway.errors import ConfigError
from gateway.routing.reference import KINDS, kind_of
from gateway.routing.schema import PolicyEntry

ROOT = Path(__file__).parents[2]

UNTIDY = """\
# About the file.

# Still about it.
rules: # after rules
# above the first
- ban: [ speculative,hybrid ]   # after ban
  # about the id
  id: medical
  when:
      any:
         - domain: {min_probability: 0.1,is: medical}   # one
         # about two
         -   keyword: [dose,
                       "mg"]   # within
         # at the end of any
      # at the end of when
  reason: >-
      Folded text,
        # no comment,

      and more.
# above the second


- id: code # after id
  reason: plain text
     over two lines

  decide:   {  mode: speculative , draft: { num_speculative_tokens: 3, source: suffix}}
  # at the end of the second
# above the name
name: "p"


version: 1 # the version
# at the end
"""
TIDY = """\
# About the file.

# Still about it.

version: 1  # the version
# above the name
name: "p"
rules:  # after rules
  # above the first
  # about the id
  - id: medical
    when:
      any:
        - domain: {is: medical, min_probability: 0.1}  # one
        # about two
        - keyword: [dose,
                    "mg"]   # within
        # at the end of any
      # at the end of when
    ban: [speculative, hybrid]  # after ban
    reason: >-
        Folded text,
          # no comment,

        and more.
  # above the second

  - id: code  # after id

    decide: {mode: speculative, draft: {source: suffix, num_speculative_tokens: 3}}
    reason: plain text
       over two lines
    # at the end of the second
# at the end
"""


def test_an_untidy_policy_becomes_tidy_with_all_its_comments() -> None:
    assert laid_out(UNTIDY, "p.yaml", PolicyEntry) == TIDY


def test_a_tidy_policy_stays_as_it_is() -> None:
    assert laid_out(TIDY, "p.yaml", PolicyEntry) == TIDY


@pytest.mark.parametrize(
    "text",
    [
        "{version: 1, name: p, rules: [{id: a, deny: x}]}\n",
        "version: 1\r\nname: p\r\n",
        "---\nversion: 1\nname: p\n...\n",
        "version: 1\nname:\n  p\nrules:\n  -\n    # on a\n    id: a\n    deny: |\n      A.\n\n      # B.\n",
        'version: 1\nname: "#p"\nrules: [{id: a, deny: "it\'s # not"}] # c\n',
        "version: 1\nname: p\nrules: # c\n  [\n    {id: a, deny: x}, # one\n    {id: b, deny: y} # 2\n  ]\n",
        "version: 1\nname: p\nrules:\n    - # first\n      deny: x\n      id: a\n    # last\n",
    ],
)  # fmt: skip
def test_every_way_to_write_a_policy_keeps_its_meaning_and_comments(text: str) -> None:
    once = laid_out(text, "p.yaml", PolicyEntry)

    assert laid_out(once, "p.yaml", PolicyEntry) == once
    assert entry(once) == entry(text)
    assert said(once) == said(text)


def entry(text: str) -> PolicyEntry:
    return documents.convert(documents.parse(text, "p.yaml"), PolicyEntry)


def said(text: str) -> list[str]:
    return sorted(comment for _, comment in _comments(text).values())


def test_a_policy_that_is_wrong_is_not_touched() -> None:
    with pytest.raises(ConfigError, match="unknown field 'nam'"):
        laid_out("version: 1\nnam: p\n", "p.yaml", PolicyEntry)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "policies").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_shipped_files_are_laid_out(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert laid_out(text, path, KINDS[kind_of(path, text)]) == text


@st.composite
def policies(draw: st.DrawFn) -> str:
    """Policies in many styles: indents, key orders, blank lines, comments anywhere they may stand."""
    seam = st.sampled_from(
        ["", "", "\n", "# a\n", "      # b\n", "\n# c\n\n", "  # d\n", "    # e\n"]
    )
    after = st.sampled_from(["", "", " # f", "   # g"])
    lines: list[str] = []

    def add(text: str) -> None:
        lines.append(draw(seam))
        lines.append(text + draw(after) + "\n")

    def rule(i: int, indent: int) -> None:
        inner = draw(st.integers(indent + 2, indent + 4))
        actions = (
            "deny: No.",
            "ban: [ hybrid ]",
            "decide: {mode: standard}",
            "limit: {max_tokens: 3}",
        )
        keys: list[Any] = [f"id: r{i}", draw(st.sampled_from(actions))]
        keys.append(draw(st.sampled_from(["reason: >\n", "owner: 'x # y'", "expires: 2030-01-01"])))
        keys.append(
            draw(st.sampled_from(["when: {n: 1,stream: true}", "when:", "when: {any: [{n: 2}]}"]))
        )
        for k, key in enumerate(draw(st.permutations(keys))):
            if key.endswith(">\n"):
                dash = "-" + " " * (inner - indent - 1) if k == 0 else " " * (inner - indent)
                lines.append(f"{' ' * indent}{dash}{key}{' ' * (inner + 2)}folded # text\n")
            else:
                dash = "-" + " " * (inner - indent - 1) if k == 0 else " " * (inner - indent)
                add(f"{' ' * indent}{dash}{key}")
            if key == "when:":
                deep = inner + draw(st.integers(1, 4))
                add(f"{' ' * deep}has_tools: true")
                add(f"{' ' * deep}domain: {{min_probability: 0.5 , is: code}}")

    for key in draw(st.permutations(["version: 1", "name: p", "rules:"])):
        add(key)
        if key == "rules:":
            indent = draw(st.integers(0, 3))
            for i in range(draw(st.integers(1, 3))):
                rule(i, indent)
    lines.append(draw(seam))
    return "".join(lines)


@settings(max_examples=40, deadline=None)
@given(policies())
def test_layout_is_idempotent_and_keeps_meaning_and_comments(text: str) -> None:
    once = laid_out(text, "p.yaml", PolicyEntry)

    assert laid_out(once, "p.yaml", PolicyEntry) == once
    assert entry(once) == entry(text)
    assert said(once) == said(text)
