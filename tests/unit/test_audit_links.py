"""The links of one request's records, and what they tell of a change."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.audit.keys import Keyring, keyring
from gateway.audit.query import DecisionReader
from gateway.audit.store import DecisionStore
from tests.records import decision_record, outcome_record

KEYS = keyring([("old", b"a secret of enough characters, surely")])


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[DecisionReader]:
    """The reader of a log with two requests."""
    url = f"sqlite:///{tmp_path}/decisions.db"
    store = await DecisionStore.open(url, keys=KEYS)
    for number in range(2):
        await store.append_decision(decision_record(number))
        await store.append_outcome(outcome_record(number))
    await store.aclose()
    reader = await DecisionReader.open(url)
    yield reader
    await reader.aclose()


def change(tmp_path: Path, statement: str) -> None:
    with closing(sqlite3.connect(tmp_path / "decisions.db")) as connection, connection:
        connection.execute(statement)


async def states(reader: DecisionReader, keys: Keyring = KEYS) -> list[tuple[str, str]]:
    return [(link.table, link.state) for link in await reader.links("dec_000001", keys)]


async def test_records_that_are_as_written_are_verified(reader: DecisionReader) -> None:
    links = await reader.links("dec_000001", KEYS)

    assert await states(reader) == [("decisions", "verified"), ("outcomes", "verified")]
    assert [link.key_id for link in links] == ["old", "old"]
    assert links[1].position == links[0].position + 1
    assert await reader.links("dec_nowhere", KEYS) == ()


async def test_a_changed_record_is_told_and_the_other_is_not_blamed(
    reader: DecisionReader, tmp_path: Path
) -> None:
    change(
        tmp_path,
        "UPDATE outcomes SET document = replace(document, 'coupled', 'typical') "
        "WHERE decision_id = 'dec_000001'",
    )

    assert await states(reader) == [("decisions", "verified"), ("outcomes", "changed")]


async def test_a_record_and_its_link_changed_together_do_not_fit_the_key(
    reader: DecisionReader, tmp_path: Path
) -> None:
    change(tmp_path, "UPDATE chain SET recorded_at = recorded_at + 1 WHERE record = 'dec_000001'")

    assert await states(reader) == [("decisions", "changed"), ("outcomes", "changed")]


async def test_what_cannot_be_checked_is_not_called_verified(
    reader: DecisionReader, tmp_path: Path
) -> None:
    assert {state for _, state in await states(reader, Keyring())} == {"unchecked"}
    (decision, _) = await reader.links("dec_000001", KEYS)
    change(tmp_path, f"DELETE FROM chain WHERE position = {decision.position - 1}")
    assert await states(reader) == [("decisions", "unchecked"), ("outcomes", "verified")]


async def test_without_a_key_records_fit_and_nobody_vouches(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plain.db"
    store = await DecisionStore.open(url)
    await store.append_decision(decision_record(1))
    await store.aclose()
    reader = await DecisionReader.open(url)
    assert await states(reader, Keyring()) == [("decisions", "unsigned")]
    await reader.aclose()
