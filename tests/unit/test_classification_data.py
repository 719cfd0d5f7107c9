"""The project's own labelled requests: enough of them, in many languages, none twice."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from gateway.classification import rows as rows_module
from gateway.classification.rows import read_rows

FILES = sorted((Path(rows_module.__file__).parent / "data").glob("*.jsonl"))
ROWS = read_rows(FILES)


def test_there_are_enough_in_many_languages_and_of_many_kinds() -> None:
    assert len(ROWS) >= 600
    assert sum(count >= 10 for count in Counter(row.lang for row in ROWS).values()) >= 10
    assert len({row.slice for row in ROWS}) >= 10
    assert sum(len(row.messages) > 1 for row in ROWS) >= 50


def test_no_request_is_there_twice() -> None:
    told = Counter(re.sub(r"\W+", "", " ".join(row.texts())).casefold() for row in ROWS)

    assert [text for text, count in told.items() if count > 1] == []


def test_every_row_says_where_it_is_from_and_what_it_is_about() -> None:
    sources = {f"draftgate-{path.stem}" for path in FILES}

    assert {row.source for row in ROWS} == sources
    assert all(row.domains and row.lang and row.slice for row in ROWS)
    assert {row.domains for row in ROWS if len(set(row.domains)) < len(row.domains)} == set()


def test_every_file_is_described() -> None:
    page = (FILES[0].parent / "README.md").read_text(encoding="utf-8")

    assert all(f"`{path.name}`" in page for path in FILES)
