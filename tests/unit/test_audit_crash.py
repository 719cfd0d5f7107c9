"""What other processes see: kill -9, and several gateways that start at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gateway.audit.store import DecisionStore

WORKERS = 16

APPEND_FOREVER = f"""
import asyncio, itertools, os, sys
from gateway.audit.store import DecisionStore
from tests.records import decision_record, outcome_record

async def main():
    store = await DecisionStore.open(sys.argv[1])
    numbers = itertools.count()

    async def work():
        for number in numbers:
            await store.append_decision(decision_record(number))
            os.write(1, b"decisions dec_%06d\\n" % number)
            await store.append_outcome(outcome_record(number))
            os.write(1, b"outcomes dec_%06d\\n" % number)

    await asyncio.gather(*(work() for _ in range({WORKERS})))

asyncio.run(main())
"""

OPEN_AND_WAIT = """
import asyncio, os, sys
from gateway.audit.store import DecisionStore
from tests.records import decision_record

async def main():
    store = await DecisionStore.open(sys.argv[1])
    await store.append_decision(decision_record(7))
    os.write(1, b"ready\\n")
    await asyncio.sleep(60)

asyncio.run(main())
"""

START_TOGETHER = """
import asyncio, sys
from gateway.audit.store import DecisionStore
from tests.records import decision_record, outcome_record

async def main():
    first = int(sys.argv[2]) * 1000
    sys.stdin.readline()
    store = await DecisionStore.open(sys.argv[1], busy_seconds=30)
    for number in range(first, first + 25):
        await store.append_decision(decision_record(number))
        await store.append_outcome(outcome_record(number))
    await store.aclose()

asyncio.run(main())
"""


def _start(script: str, *arguments: object) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _interrupted_at_opening(url: str) -> int:
    async def run() -> int:
        store = await DecisionStore.open(url)
        await store.aclose()
        return store.interrupted

    return asyncio.run(run())


def test_a_killed_process_lost_nothing_that_it_had_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "decisions.db"
    with _start(APPEND_FOREVER, f"sqlite:///{path}") as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(600)]
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
    assert child.returncode == -signal.SIGKILL

    acknowledged: dict[str, set[str]] = {"decisions": set(), "outcomes": set()}
    for line in lines:
        table, decision_id = line.split()
        acknowledged[table].add(decision_id)
    with closing(sqlite3.connect(path)) as connection:
        found = {
            table: {row[0] for row in connection.execute(f"SELECT decision_id FROM {table}")}
            for table in acknowledged
        }
    in_flight = sum(len(found[table] - acknowledged[table]) for table in found)
    assert acknowledged["decisions"] <= found["decisions"]
    assert acknowledged["outcomes"] <= found["outcomes"]
    assert in_flight <= WORKERS

    still_open = found["decisions"] - found["outcomes"]
    assert len(still_open) == _interrupted_at_opening(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        (closed,) = connection.execute("SELECT count(*) FROM outcomes").fetchone()
    assert len(found["decisions"]) == closed


def test_the_open_requests_of_a_process_are_closed_after_its_death_and_not_before(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'decisions.db'}"
    with _start(OPEN_AND_WAIT, url) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert _interrupted_at_opening(url) == 0
        # Stopped is not dead: a heartbeat could not tell.
        child.send_signal(signal.SIGSTOP)
        assert _interrupted_at_opening(url) == 0
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert _interrupted_at_opening(url) == 1
    assert _interrupted_at_opening(url) == 0
    assert [lock.name for lock in (tmp_path / "decisions.db.writers").iterdir()] == ["gate"]


@pytest.mark.parametrize("processes", [3])
def test_processes_that_start_at_once_on_no_database_all_get_to_write(
    tmp_path: Path, processes: int
) -> None:
    path = tmp_path / "decisions.db"
    children = [_start(START_TOGETHER, f"sqlite:///{path}", number) for number in range(processes)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        with child:
            assert child.wait(60) == 0
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute(
            "SELECT count(*) FROM decisions JOIN outcomes USING (decision_id)"
        ).fetchone()
    assert processes * 25 == count
