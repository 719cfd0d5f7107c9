from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.audit.filters import Filters
from gateway.audit.query import DecisionReader, Entry
from gateway.audit.store import DecisionStore
from gateway.errors import AuditUnavailable, ConfigError, InvalidRequest
from gateway.types import Caller, Mode, Signal, Signals
from tests.records import decided, decision_record, outcome_record


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DecisionStore]:
    store = await DecisionStore.open(f"sqlite:///{tmp_path}/decisions.db")
    yield store
    await store.aclose()


@pytest.fixture
async def reader(store: DecisionStore, tmp_path: Path) -> AsyncIterator[DecisionReader]:
    reader = await DecisionReader.open(f"sqlite:///{tmp_path}/decisions.db")
    yield reader
    await reader.aclose()


async def _ids(reader: DecisionReader, **filters: Any) -> list[str]:
    page = await reader.list(Filters(**filters))
    return [entry.decision.decision_id[-1] for entry in page.entries]


async def test_an_empty_log_has_an_empty_page(reader: DecisionReader) -> None:
    page = await reader.list()
    assert (page.entries, page.next_cursor) == ((), None)
    assert await reader.get("dec_000000") is None
    assert await reader.find("dec") == ()


async def test_reading_works_beside_the_writer_and_sees_each_step_of_a_request(
    store: DecisionStore, reader: DecisionReader
) -> None:
    await store.append_decision(decision_record())
    assert Entry(decision_record(), None) == await reader.get("dec_000000")
    await store.append_outcome(outcome_record())
    assert Entry(decision_record(), outcome_record()) == await reader.get("dec_000000")


async def test_a_list_is_newest_first_by_time_then_by_arrival(
    store: DecisionStore, reader: DecisionReader
) -> None:
    for number, created_at in ((0, 5.0), (1, 9.0), (2, 5.0), (3, 1.0)):
        await store.append_decision(decision_record(number, created_at=created_at))
    assert await _ids(reader) == ["1", "2", "0", "3"]


async def test_each_filter_keeps_what_it_names_and_all_of_them_must_hold(
    store: DecisionStore, reader: DecisionReader
) -> None:
    medical = Signals(items=(Signal("domain", "medical", 0.9, "domain"),))
    request = msgspec.structs.replace(decision_record().request, model="large")
    records = (
        decision_record(0),
        decision_record(1, caller=Caller(id="bob")),
        decision_record(2, signals=medical),
        decision_record(3, signals=Signals()),
        decided(4, mode=Mode.STANDARD),
        decided(5, rule="support"),
        decision_record(6, request=request),
    )
    for record in records:
        await store.append_decision(record)
    await store.append_outcome(outcome_record(0))
    await store.append_outcome(outcome_record(5, attestation="attestation_failed"))

    assert await _ids(reader, caller="bob") == ["1"]
    assert await _ids(reader, domain="medical") == ["2"]
    assert await _ids(reader, mode=Mode.STANDARD) == ["4"]
    assert await _ids(reader, rule="support") == ["5"]
    assert await _ids(reader, model="large") == ["6"]
    assert await _ids(reader, flags=("attestation_failed",)) == ["5"]
    assert await _ids(reader, since=1005.0) == ["6", "5"]
    assert await _ids(reader, until=1002.0) == ["1", "0"]
    assert await _ids(reader, since=1003.0, until=1005.0) == ["4", "3"]
    assert await _ids(reader, caller="bob", domain="medical") == []
    assert await _ids(reader, caller="' OR 1=1 --") == []
    assert await _ids(reader, caller="") == []


async def test_a_text_too_long_for_an_index_is_still_found_by_all_of_it(
    store: DecisionStore, reader: DecisionReader
) -> None:
    rule = "\0" + "r" * 10_000
    await store.append_decision(decided(1, rule=rule))
    assert await _ids(reader, rule=rule) == ["1"]


async def test_following_the_cursors_meets_every_entry_once_while_new_ones_arrive(
    store: DecisionStore, reader: DecisionReader
) -> None:
    for number in range(25):
        # Many share a time: it alone could not say where a page ended.
        await store.append_decision(decision_record(number, created_at=float(number // 7)))
    met: list[str] = []
    cursor = None
    for new in range(100, 120):
        page = await reader.list(limit=4, cursor=cursor)
        met += [entry.decision.decision_id for entry in page.entries]
        await store.append_decision(decision_record(new, created_at=3.0))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert [f"dec_{number:06d}" for number in reversed(range(25))] == met


async def test_a_page_that_ends_with_the_last_entry_has_no_next(
    store: DecisionStore, reader: DecisionReader
) -> None:
    for number in range(4):
        await store.append_decision(decision_record(number))
    assert (await reader.list(limit=4)).next_cursor is None
    assert (await reader.list(limit=3)).next_cursor is not None


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "!!",
        "W10",
        "WzEsImEiXQ",
        "é",
        "bnVsbA",
        "\ud800",
        "WzEsOTk5OTk5OTk5OTk5OTk5OTk5OTld",
    ],
)
async def test_a_cursor_that_the_log_did_not_give_is_refused(
    reader: DecisionReader, cursor: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await reader.list(cursor=cursor)
    assert caught.value.param == "cursor"


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_limit_out_of_range_is_refused(reader: DecisionReader, limit: int) -> None:
    with pytest.raises(InvalidRequest, match="from 1 to 1000"):
        await reader.list(limit=limit)


@pytest.mark.parametrize("field", ["since", "until"])
async def test_a_time_that_is_no_number_is_refused(reader: DecisionReader, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await reader.list(msgspec.structs.replace(Filters(), **{field: float("nan")}))
    assert field == caught.value.param


async def test_ids_are_found_by_their_beginning_in_their_order(
    store: DecisionStore, reader: DecisionReader
) -> None:
    for decision_id in ("dec_b", "dec_a", "dec_ab", "DEC_A", "dec_%"):
        await store.append_decision(decision_record(decision_id=decision_id))

    async def found(prefix: str) -> list[str]:
        entries = await reader.find(prefix, limit=9)
        return [entry.decision.decision_id for entry in entries]

    assert await found("dec_a") == ["dec_a", "dec_ab"]
    assert await found("dec_%") == ["dec_%"]
    assert await found("dec_c") == []
    assert len(await found("")) == 5


async def test_a_reader_never_makes_a_database(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no decision log at"):
        await DecisionReader.open(f"sqlite:///{tmp_path}/none/decisions.db")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"text that is no database, at some length" * 100])
async def test_a_file_that_is_no_decision_log_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.db"):
        await DecisionReader.open(f"sqlite:///{path}")
    assert content == path.read_bytes()


async def test_a_log_of_another_version_is_refused(store: DecisionStore, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "decisions.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(ConfigError, match="start the gateway once"):
        await DecisionReader.open(f"sqlite:///{tmp_path}/decisions.db")


async def test_a_reader_cannot_write(reader: DecisionReader) -> None:
    with reader._engine.connect() as connection, pytest.raises(Exception, match="readonly"):
        connection.exec_driver_sql("DELETE FROM decisions")


async def test_a_damaged_record_is_named(
    store: DecisionStore, reader: DecisionReader, tmp_path: Path
) -> None:
    await store.append_decision(decision_record())
    with closing(sqlite3.connect(tmp_path / "decisions.db")) as connection, connection:
        connection.execute("UPDATE decisions SET document = '{\"decision_id\": 5'")
    with pytest.raises(AuditUnavailable, match="entry 1 of the log is damaged"):
        await reader.list()


async def test_a_log_that_loses_a_table_under_its_reader_is_unavailable(
    store: DecisionStore, reader: DecisionReader, tmp_path: Path
) -> None:
    await store.append_decision(decision_record())
    with closing(sqlite3.connect(tmp_path / "decisions.db")) as connection, connection:
        connection.execute("DROP TABLE outcomes")
    with pytest.raises(AuditUnavailable, match="cannot be read"):
        await reader.list()
