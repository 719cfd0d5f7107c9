from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from gateway.audit.schema import Row, decision_row
from gateway.audit.writer import MAX_BATCH, GroupWriter
from gateway.errors import AuditUnavailable
from gateway.log import build_log
from tests.records import decision_record

ROW = decision_row(decision_record(), "w")


class Commits:
    """A commit that waits to be let go, and notes what it was given."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        self.sizes: list[int] = []
        self.error: Exception | None = None

    def __call__(self, rows: Sequence[Row]) -> list[AuditUnavailable | None]:
        self.entered.set()
        self.go.wait(60)
        self.sizes.append(len(rows))
        if self.error is not None:
            raise self.error
        return [None] * len(rows)


async def test_what_comes_during_a_commit_shares_the_next_one() -> None:
    commits = Commits()
    writer = GroupWriter(commits, max_pending=5000, log=build_log())
    first = asyncio.create_task(writer.write(ROW, may_refuse=True))
    await asyncio.sleep(0)
    await asyncio.to_thread(commits.entered.wait)
    others = [asyncio.create_task(writer.write(ROW, may_refuse=True)) for _ in range(100)]
    await asyncio.sleep(0)
    assert not first.done()
    commits.go.set()
    await asyncio.gather(first, *others)
    assert commits.sizes == [1, 100]
    await writer.aclose()


async def test_a_batch_has_an_upper_size() -> None:
    commits = Commits()
    writer = GroupWriter(commits, max_pending=5000, log=build_log())
    first = asyncio.create_task(writer.write(ROW, may_refuse=True))
    await asyncio.sleep(0)
    await asyncio.to_thread(commits.entered.wait)
    others = [asyncio.create_task(writer.write(ROW, may_refuse=True)) for _ in range(MAX_BATCH + 1)]
    await asyncio.sleep(0)
    commits.go.set()
    await asyncio.gather(first, *others)
    assert commits.sizes == [1, MAX_BATCH, 1]
    await writer.aclose()


async def test_an_unforeseen_error_is_told_and_does_not_end_the_thread() -> None:
    commits = Commits()
    commits.go.set()
    commits.error = ZeroDivisionError("surprise")
    writer = GroupWriter(commits, max_pending=10, log=build_log())
    results = await asyncio.gather(
        *(writer.write(ROW, may_refuse=True) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, AuditUnavailable) for result in results)
    assert len({id(result) for result in results}) == 3
    commits.error = None
    await writer.write(ROW, may_refuse=True)
    await writer.aclose()


def test_a_loop_that_ended_without_closing_does_not_break_the_thread() -> None:
    commits = Commits()
    threads: list[threading.Thread] = []

    async def leave() -> None:
        writer = GroupWriter(commits, max_pending=10, log=build_log())
        threads.append(writer._thread)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.write(ROW, may_refuse=True), 0.05)

    asyncio.run(leave())
    commits.go.set()
    for _ in range(100):
        if commits.sizes:
            break
        threading.Event().wait(0.02)
    assert commits.sizes == [1]
    assert threads[0].is_alive()
