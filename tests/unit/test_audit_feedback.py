"""Feedback in the decision log: durable, append-only, and about decisions that are there."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.audit.query import DecisionReader
from gateway.audit.record import Feedback
from gateway.audit.store import DecisionStore
from gateway.errors import AuditUnavailable
from tests.databases import SqliteDatabase, take_back
from tests.records import decision_record


def feedback(number: int, *domains: str, at: float = 5.0) -> Feedback:
    return Feedback(decision_id=f"dec_{number:06d}", given_at=at, by="ada", domains=domains)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/decisions.db"


async def test_feedback_stands_with_its_decision_in_the_order_given(url: str) -> None:
    store = await DecisionStore.open(url)
    for number in (1, 2, 3):
        await store.append_decision(decision_record(number))
    # A clock may go back; the order is the log's.
    for record in (feedback(1, "code", at=9.0), feedback(3), feedback(1, "medical", at=4.0)):
        await store.append_feedback(record)
    await store.aclose()

    reader = await DecisionReader.open(url)
    try:
        page = await reader.list(limit=2)
        next_page = await reader.list(limit=2, cursor=page.next_cursor)
        (found,) = await reader.find("dec_000001")
        assert await reader.get("dec_000001") == found
    finally:
        await reader.aclose()
    assert [len(entry.feedback) for entry in (*page.entries, *next_page.entries)] == [1, 0, 2]
    assert [one.domains for one in found.feedback] == [("code",), ("medical",)]


async def test_feedback_on_nothing_is_refused_and_costs_its_neighbours_nothing(url: str) -> None:
    store = await DecisionStore.open(url)
    await store.append_decision(decision_record(1))

    with pytest.raises(AuditUnavailable, match="no decision dec_000002 to give feedback to"):
        await store.append_feedback(feedback(2))
    await store.append_feedback(feedback(1))
    await store.aclose()


async def test_a_log_of_the_version_before_is_brought_up_to_date(url: str, tmp_path: Path) -> None:
    store = await DecisionStore.open(url)
    await store.append_decision(decision_record(1))
    await store.aclose()
    take_back(SqliteDatabase(tmp_path / "decisions.db"), "0002")

    store = await DecisionStore.open(url)
    await store.append_feedback(feedback(1, "legal"))
    await store.aclose()


async def test_damaged_feedback_is_named(url: str, tmp_path: Path) -> None:
    store = await DecisionStore.open(url)
    await store.append_decision(decision_record(1))
    await store.append_feedback(feedback(1))
    await store.aclose()
    with closing(sqlite3.connect(tmp_path / "decisions.db")) as connection, connection:
        connection.execute("UPDATE feedback SET document = '{'")

    reader = await DecisionReader.open(url)
    try:
        with pytest.raises(AuditUnavailable, match="feedback 1 of the log is damaged"):
            await reader.list()
    finally:
        await reader.aclose()
