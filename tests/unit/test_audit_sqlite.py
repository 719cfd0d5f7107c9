"""What only SQLite does, or can have done to it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.audit.store import DecisionStore
from gateway.errors import AuditUnavailable
from tests.records import decided, decision_record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[DecisionStore]:
    store = await DecisionStore.open(f"sqlite:///{path}", max_pending=10, busy_seconds=30)
    yield store
    await store.aclose()


def _count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)


def _replace(path: Path, content: bytes | None) -> None:
    path.unlink()
    if content is not None:
        path.write_bytes(content)


async def test_every_commit_waits_for_the_disk(store: DecisionStore) -> None:
    with store._opened.engine.connect() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    full = 2
    assert {"journal_mode": "wal", "synchronous": full, "foreign_keys": 1} == settings


async def test_a_full_disk_is_told_and_the_log_works_again_when_there_is_room(
    store: DecisionStore, path: Path
) -> None:
    def limit(pages: int) -> None:
        with store._opened.engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    big = decided(1, reason="x" * 200_000)
    limit(1)
    with pytest.raises(AuditUnavailable, match="database or disk is full"):
        await store.append_decision(big)
    assert _count(path, "decisions") == 0

    limit(1_000_000)
    await store.append_decision(big)
    assert _count(path, "decisions") == 1


async def test_a_database_that_became_read_only_is_told(store: DecisionStore) -> None:
    with store._opened.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only=ON")
    with pytest.raises(AuditUnavailable, match="readonly"):
        await store.append_decision(decision_record())


@pytest.mark.parametrize("replacement", [None, b""])
async def test_nothing_is_acknowledged_once_the_file_was_removed_or_replaced(
    store: DecisionStore, path: Path, replacement: bytes | None
) -> None:
    _replace(path, replacement)
    with pytest.raises(AuditUnavailable, match="cannot be written") as caught:
        await store.append_decision(decision_record())
    assert str(path) not in caught.value.message


async def test_a_closed_log_leaves_no_lock_behind(store: DecisionStore, path: Path) -> None:
    locks = path.with_name("decisions.db.writers")
    assert {"gate", store._opened.ledger.writer} == {lock.name for lock in locks.iterdir()}
    await store.aclose()
    assert [lock.name for lock in locks.iterdir()] == ["gate"]
