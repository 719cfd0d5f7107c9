"""The store, on each kind of database."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sized

import pytest
import sqlalchemy as sa

from gateway.audit.query import DecisionReader, Entry
from gateway.audit.store import DecisionStore
from gateway.errors import AuditUnavailable
from gateway.types import Caller, FinishReason, RuleTrace, Signal, Signals
from tests.databases import LogDatabase
from tests.records import decided, decision_record, outcome_record


@pytest.fixture
async def store(log_database: LogDatabase) -> AsyncIterator[DecisionStore]:
    store = await DecisionStore.open(log_database.url, max_pending=10, busy_seconds=30)
    yield store
    await store.aclose()


@pytest.fixture
async def impatient(log_database: LogDatabase) -> AsyncIterator[DecisionStore]:
    """A store that hardly waits for a lock."""
    store = await DecisionStore.open(log_database.url, busy_seconds=0.2)
    yield store
    await store.aclose()


async def _taken(store: DecisionStore) -> None:
    """Wait until the thread has taken all that waits, and is stuck in its commit."""
    await asyncio.to_thread(_wait_until_empty, store._writer._pending)


def _wait_until_empty(pending: Sized) -> None:
    while pending:
        time.sleep(0.005)


def _count(log_database: LogDatabase, table: str) -> int:
    ((count,),) = log_database.run(f"SELECT count(*) FROM {table}")
    return int(count)


async def _entry(log_database: LogDatabase, decision_id: str) -> Entry | None:
    reader = await DecisionReader.open(log_database.url)
    try:
        return await reader.get(decision_id)
    finally:
        await reader.aclose()


async def test_both_records_are_read_back_as_they_were_after_the_log_was_closed(
    log_database: LogDatabase,
) -> None:
    store = await DecisionStore.open(log_database.url)
    await store.append_decision(decision_record())
    await store.append_outcome(outcome_record())
    await store.aclose()

    assert Entry(decision_record(), outcome_record()) == await _entry(log_database, "dec_000000")


async def test_a_record_is_in_the_database_when_its_append_returns(
    store: DecisionStore, log_database: LogDatabase
) -> None:
    await store.append_decision(decision_record())
    assert _count(log_database, "decisions") == 1
    await store.append_outcome(outcome_record())
    assert _count(log_database, "outcomes") == 1


async def test_two_hundred_appends_at_once_share_a_few_commits(log_database: LogDatabase) -> None:
    store = await DecisionStore.open(log_database.url)
    commits: list[sa.Connection] = []
    sa.event.listen(store._opened.engine, "commit", commits.append)

    await asyncio.gather(*(store.append_decision(decision_record(i)) for i in range(200)))
    await asyncio.gather(*(store.append_outcome(outcome_record(i)) for i in range(200)))

    assert (_count(log_database, "decisions"), _count(log_database, "outcomes")) == (200, 200)
    assert len(commits) < 20
    await store.aclose()


async def test_a_cancelled_wait_costs_neither_its_record_nor_its_neighbours(
    store: DecisionStore, log_database: LogDatabase
) -> None:
    with log_database.locked():
        waits = [asyncio.create_task(store.append_decision(decision_record(i))) for i in range(6)]
        await asyncio.sleep(0)
        waits[0].cancel()
        waits[3].cancel()
        await asyncio.sleep(0)
    results = await asyncio.gather(*waits, return_exceptions=True)

    assert [i for i, r in enumerate(results) if isinstance(r, asyncio.CancelledError)] == [0, 3]
    assert sum(result is not None for result in results) == 2
    await store.append_outcome(outcome_record(3))
    assert (_count(log_database, "decisions"), _count(log_database, "outcomes")) == (6, 1)


async def test_while_another_process_holds_the_lock_every_waiter_is_told_and_nothing_is_written(
    impatient: DecisionStore, log_database: LogDatabase
) -> None:
    with log_database.locked():
        results = await asyncio.gather(
            *(impatient.append_decision(decision_record(i)) for i in range(5)),
            return_exceptions=True,
        )
    assert all(isinstance(result, AuditUnavailable) for result in results)
    assert {f"the decision log cannot be written: {log_database.locked_words}"} == {
        str(r) for r in results
    }
    assert _count(log_database, "decisions") == 0

    await impatient.append_decision(decision_record(0))
    assert _count(log_database, "decisions") == 1


async def test_one_bad_record_does_not_cost_its_neighbours_their_commit(
    store: DecisionStore, log_database: LogDatabase
) -> None:
    await store.append_decision(decision_record(1))
    with log_database.locked():
        waits = [asyncio.create_task(store.append_decision(decision_record(0)))]
        await asyncio.sleep(0)
        await _taken(store)
        # These wait for the first to be written, and are a batch.
        waits += [
            asyncio.create_task(store.append_decision(decision_record(number)))
            for number in (1, 2, 3)
        ]
        waits.append(asyncio.create_task(store.append_outcome(outcome_record(9))))
        await asyncio.sleep(0)
    *good, without = await asyncio.gather(*waits, return_exceptions=True)
    twice = good.pop(1)

    assert good == [None, None, None]
    assert isinstance(twice, AuditUnavailable)
    assert "already" in str(twice)
    assert isinstance(without, AuditUnavailable)
    assert "no decision dec_000009" in str(without)
    assert _count(log_database, "decisions") == 4


async def test_a_decision_has_one_outcome(store: DecisionStore) -> None:
    await store.append_decision(decision_record())
    await store.append_outcome(outcome_record())
    with pytest.raises(AuditUnavailable, match="already"):
        await store.append_outcome(outcome_record(finish_reasons=(FinishReason.ERROR,)))


async def test_a_full_queue_refuses_decisions_but_never_the_outcome_of_one_it_took(
    store: DecisionStore, log_database: LogDatabase
) -> None:
    await store.append_decision(decision_record(99))
    with log_database.locked():
        first = asyncio.create_task(store.append_decision(decision_record(0)))
        await asyncio.sleep(0)
        await _taken(store)
        waits = [
            asyncio.create_task(store.append_decision(decision_record(i))) for i in range(1, 11)
        ]
        await asyncio.sleep(0)
        with pytest.raises(AuditUnavailable, match="too many") as caught:
            await store.append_decision(decision_record(11))
        outcome = asyncio.create_task(store.append_outcome(outcome_record(99)))
        await asyncio.sleep(0)
    await asyncio.gather(first, *waits, outcome)

    assert caught.value.retry_after == 1
    assert (_count(log_database, "decisions"), _count(log_database, "outcomes")) == (12, 1)


async def test_closing_writes_what_is_pending_and_then_takes_no_more(
    store: DecisionStore, log_database: LogDatabase
) -> None:
    waits = [asyncio.create_task(store.append_decision(decision_record(i))) for i in range(5)]
    await asyncio.sleep(0)
    await asyncio.gather(store.aclose(), store.aclose())
    await asyncio.gather(*waits)
    await store.aclose()

    assert _count(log_database, "decisions") == 5
    with pytest.raises(AuditUnavailable, match="closed"):
        await store.append_outcome(outcome_record())


async def test_a_cancelled_close_still_closes(
    store: DecisionStore, log_database: LogDatabase
) -> None:
    await store.append_decision(decision_record())
    with log_database.locked():
        pending = asyncio.create_task(store.append_outcome(outcome_record()))
        closing = asyncio.create_task(store.aclose())
        await asyncio.sleep(0.02)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    await pending
    await store.aclose()
    assert _count(log_database, "writers") == 0


async def test_a_lost_record_that_nobody_waits_for_any_more_is_logged(
    impatient: DecisionStore, log_database: LogDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    with log_database.locked():
        wait = asyncio.create_task(impatient.append_decision(decision_record()))
        await asyncio.sleep(0)
        wait.cancel()
        with pytest.raises(AuditUnavailable):
            await impatient.append_decision(decision_record(1))
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["event"], line["decision_id"]) == ("record_lost", "dec_000000")


async def test_a_decision_left_open_at_a_close_is_closed_as_interrupted_at_the_next_start(
    log_database: LogDatabase,
) -> None:
    store = await DecisionStore.open(log_database.url)
    for number in range(3):
        await store.append_decision(decision_record(number))
    await store.append_outcome(outcome_record(1))
    await store.aclose()

    again = await DecisionStore.open(log_database.url, clock=lambda: 5000.0)
    assert again.interrupted == 2
    await again.aclose()
    third = await DecisionStore.open(log_database.url)
    assert third.interrupted == 0
    await third.aclose()

    entry = await _entry(log_database, "dec_000002")
    assert entry is not None
    assert entry.outcome is not None
    assert (
        entry.outcome.interrupted,
        entry.outcome.finish_reasons,
        entry.outcome.finished_at,
        entry.outcome.attestation,
    ) == (True, (), 5000.0, "unknown")
    assert entry.outcome.error is not None
    assert entry.outcome.error.startswith("interrupted: ")
    kept = await _entry(log_database, "dec_000001")
    assert kept == Entry(decision_record(1), outcome_record(1))


async def test_a_second_gateway_on_the_same_log_leaves_the_open_requests_of_the_first_alone(
    log_database: LogDatabase,
) -> None:
    first = await DecisionStore.open(log_database.url)
    await first.append_decision(decision_record(1))
    second = await DecisionStore.open(log_database.url)
    assert second.interrupted == 0

    await asyncio.gather(
        first.append_outcome(outcome_record(1)),
        *(second.append_decision(decision_record(i)) for i in range(10, 60)),
        *(first.append_decision(decision_record(i)) for i in range(60, 110)),
    )
    assert (_count(log_database, "decisions"), _count(log_database, "outcomes")) == (101, 1)

    await first.aclose()
    third = await DecisionStore.open(log_database.url)
    assert third.interrupted == 50
    await second.aclose()
    await third.aclose()


async def test_more_orphans_than_one_statement_takes_are_all_closed(
    log_database: LogDatabase,
) -> None:
    store = await DecisionStore.open(log_database.url)
    await asyncio.gather(*(store.append_decision(decision_record(i)) for i in range(2300)))
    await store.aclose()
    again = await DecisionStore.open(log_database.url)
    assert (again.interrupted, _count(log_database, "outcomes")) == (2300, 2300)
    await again.aclose()


ODD = "\0 \x1b[31m \r\n \u2028 \u202e ﷽ 👩‍👩‍👧 'quoted' \"; DROP TABLE decisions; --"


async def test_odd_unicode_in_every_text_is_kept(
    store: DecisionStore, log_database: LogDatabase
) -> None:
    record = decision_record(
        request_id=ODD,
        caller=Caller(id=ODD, team=ODD),
        signals=Signals(items=(Signal("domain", ODD, 0.5, ODD),), error=ODD),
    )
    await store.append_decision(record)
    await store.append_outcome(outcome_record(error=ODD))
    assert Entry(record, outcome_record(error=ODD)) == await _entry(
        log_database, record.decision_id
    )


async def test_a_lone_surrogate_costs_one_character_and_not_the_record(
    store: DecisionStore, log_database: LogDatabase
) -> None:
    await store.append_decision(decision_record(caller=Caller(id="a\udcffb")))
    await store.append_outcome(outcome_record(error="no file a\udcffb"))
    entry = await _entry(log_database, "dec_000000")
    assert entry is not None
    assert entry.outcome is not None
    assert (entry.decision.caller.id, entry.outcome.error) == ("a?b", "no file a?b")


async def test_a_huge_record_is_kept_whole(store: DecisionStore, log_database: LogDatabase) -> None:
    trace = tuple(RuleTrace(f"rule-{i}", "ban", False, "é" * 1000) for i in range(3000))
    record = decided(trace=trace, rule="r" * 100_000)
    await store.append_decision(record)
    assert Entry(record, None) == await _entry(log_database, record.decision_id)


async def test_a_number_that_json_cannot_hold_is_refused_and_named(store: DecisionStore) -> None:
    signals = Signals(items=(Signal("domain", "code", float("nan"), "domain"),))
    with pytest.raises(AuditUnavailable, match=r"signals\.items\[0\]\.score"):
        await store.append_decision(decision_record(signals=signals))
    await store.append_decision(decision_record())
    with pytest.raises(AuditUnavailable, match=r"finished_at"):
        await store.append_outcome(outcome_record(finished_at=float("inf")))
