from __future__ import annotations

from pathlib import Path

import pytest

from gateway.classification.rows import read_rows
from gateway.errors import ConfigError

SAMPLE = Path("tests/data/domains_sample.jsonl")


def problems_of(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_rows([path])
    return [str(problem) for problem in caught.value.problems]


def test_the_sample_has_a_conversation_a_mixture_and_a_row_of_no_domain() -> None:
    rows = read_rows([SAMPLE])

    assert any(len(row.texts()) == 3 for row in rows)
    assert any(len(row.domains) == 2 for row in rows)
    assert any(row.domains == () for row in rows)


def test_every_bad_line_is_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b'{"text": "good", "domains": ["code"]}\n'
        b"not json\n"
        b"\n"
        b'{"text": "no domains"}\n'
        b'{"text": "   ", "domains": []}\n'
        b'{"text": "x", "domains": ["medcal"]}\n'
        b'{"text": "x", "domains": ["zzz"]}\n'
        b'{"text": "\xff", "domains": []}\n'
        b'{"text": "x", "domains": "code"}\n'
    )

    lines = problems_of(path)

    assert [int(line.removeprefix(str(path)).split(":")[1]) for line in lines] == [
        2,
        4,
        5,
        6,
        7,
        8,
        9,
    ]
    assert "domains" in lines[1]
    assert "the text is empty" in lines[2]
    assert "did you mean 'medical'?" in lines[3]
    assert "known: medical, legal" in lines[4]


def test_a_thousand_bad_lines_are_counted_and_not_all_shown(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("?\n" * 1000)

    lines = problems_of(path)

    assert len(lines) == 21
    assert lines[-1].endswith("and 980 more bad lines")


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)

    assert [f"{path}: no rows (one JSON object a line)"] == problems_of(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    assert ["No such file or directory" in line for line in problems_of(tmp_path / "no")] == [True]
    assert ["Is a directory" in line for line in problems_of(tmp_path)] == [True]
