"""The prompts that go into an experiment, and the rows that come out: none is lost, none made twice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.errors import ConfigError
from gateway.experiments.journal import RESULTS, Journal, open_journal
from gateway.experiments.prompts import in_turn, read_prompts, seed_of
from gateway.types import Sampling


class Settings(msgspec.Struct):
    names: tuple[str, ...] = ("a",)
    seed: int = 0


class Row(msgspec.Struct):
    number: int


def test_rows_survive_and_are_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    with open_journal(folder, Settings(), Row) as journal:
        journal.add(Row(1))
        assert (folder / RESULTS).read_bytes() == b'{"number":1}\n'
        journal.add(Row(2))

    with open_journal(folder, Settings(), Row) as journal:
        assert [row.number for row in journal.rows] == [1, 2]
        journal.add(Row(3))

    assert (folder / RESULTS).read_text().count("\n") == 3


def test_a_row_that_a_crash_tore_off_is_made_again(tmp_path: Path) -> None:
    with open_journal(tmp_path, Settings(), Row) as journal:
        journal.add(Row(1))
    with (tmp_path / RESULTS).open("ab") as file:
        file.write(b'{"num')

    with open_journal(tmp_path, Settings(), Row) as journal:
        assert [row.number for row in journal.rows] == [1]
        journal.add(Row(2))

    assert (tmp_path / RESULTS).read_bytes() == b'{"number":1}\n{"number":2}\n'


def test_other_settings_two_at_once_and_damage_are_refused(tmp_path: Path) -> None:
    with open_journal(tmp_path, Settings(), Row) as journal:
        journal.add(Row(1))
        with (
            pytest.raises(ConfigError, match="another run writes here"),
            open_journal(tmp_path, Settings(), Row),
        ):
            pass
    with (
        pytest.raises(ConfigError, match="another seed"),
        open_journal(tmp_path, Settings(seed=1), Row),
    ):
        pass
    (tmp_path / RESULTS).write_text("{}\n")
    with pytest.raises(ConfigError, match="no row"), open_journal(tmp_path, Settings(), Row):
        pass
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ConfigError, match="no settings"), open_journal(tmp_path, Settings(), Row):
        pass


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="cannot write"),
        open_journal(tmp_path / "file", Settings(), Row),
    ):
        pass


def test_a_fault_of_the_run_is_not_taken_for_the_folders(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="gone"), open_journal(tmp_path, Settings(), Row):
        raise ConnectionError("gone")


def test_a_row_that_finds_no_room_is_said_and_not_kept() -> None:
    with Path("/dev/full").open("ab", buffering=0) as full:
        journal = Journal[Row]([], full)
        with pytest.raises(ConfigError, match="cannot write: No space left"):
            journal.add(Row(1))

    assert journal.rows == []


def test_without_a_folder_rows_are_kept_in_memory() -> None:
    with open_journal(None, Settings(), Row) as journal:
        journal.add(Row(1))

    assert journal.rows == [Row(1)]


# ---- prompts --------------------------------------------------------------------------------------


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_prompt_is_written_in_any_of_three_ways(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        '{"prompt": "one", "domain": "code", "gold": ["1"]}',
        "",
        '{"id": "b", "group": "chat", "turns": ["two", "later"], "unknown": 3}',
        '{"id": "c", "messages": [{"role": "system", "content": "s"}, {"content": "three"}]}',
    )
    gold = write(tmp_path / "g.jsonl", '{"id": "c", "gold": ["3", "three"]}')

    found = read_prompts(path, gold=gold)

    assert [(one.id, one.kind, one.gold) for one in found] == [
        ("1", "code", ("1",)),
        ("b", "chat", ()),
        ("c", "", ("3", "three")),
    ]
    assert [one.request(Sampling()).texts() for one in found] == [
        ("one",),
        ("two",),
        ("s", "three"),
    ]


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl", '{"id": "a", "prompt": "x"}', "{", '{"id": "a", "turns": []}'
    )
    gold = write(tmp_path / "g.jsonl", '{"id": "z", "gold": ["1"]}')

    with pytest.raises(ConfigError) as caught:
        read_prompts(path, gold=gold)

    messages = [problem.message for problem in caught.value.problems]
    assert messages[1:] == [
        "the prompt 'a' is empty",
        "the id 'a' is there twice",
        "no prompt has the id 'z'",
    ]
    assert caught.value.problems[0].line == 2
    with pytest.raises(ConfigError, match="no prompts"):
        read_prompts(write(tmp_path / "empty.jsonl"))
    with pytest.raises(ConfigError, match="cannot read"):
        read_prompts(tmp_path / "none.jsonl")


def test_the_kinds_come_in_turn(tmp_path: Path) -> None:
    kinds = ("a", "a", "a", "b")
    lines = [f'{{"prompt": "{i}", "domain": "{kind}"}}' for i, kind in enumerate(kinds)]

    found = in_turn(read_prompts(write(tmp_path / "p.jsonl", *lines)), 2)

    assert [one.prompt for one in found] == ["0", "3", "1"]


def test_seeds_follow_from_what_they_are_for() -> None:
    assert seed_of("a", 1) == seed_of("a", 1)
    assert len({seed_of("a", 1), seed_of("a", 2), seed_of("a1"), seed_of("a", "1", "")}) == 4
    assert 0 <= seed_of("a") < 1 << 62
