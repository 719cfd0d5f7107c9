"""Evidence across restarts, gateways and databases: nothing lost, nothing twice, no alarm that flaps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway.audit.holdings import open_holdings
from gateway.audit.keys import keyring
from gateway.audit.record import Access, EvidenceEvent, OutcomeRecord, Shadow
from gateway.audit.store import DecisionStore
from gateway.audit.verification import verify
from gateway.cell import Cell
from gateway.errors import AuditUnavailable, Conflict, NotFound
from gateway.evidence.alarm import Bounds
from gateway.evidence.follower import Follower
from gateway.evidence.gauges import Gauges
from gateway.evidence.journal import Journal
from gateway.evidence.watch import Watch
from gateway.log import build_log
from gateway.tally import Tally
from tests.databases import LogDatabase
from tests.records import decision_record, outcome_record

CODE = Cell("code", "speculative", "coupled", "small", "suffix")
STRONG = Tally(num_tokens=20, log_factors={"leak": 20.0})
CALM = Tally(num_tokens=20, log_factors={"leak": -0.1})
KEYS = keyring([("", b"a key for tests alone, of enough characters")])


class Clock:
    """Stands still unless told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Messages:
    """Keeps what it is to carry."""

    def __init__(self) -> None:
        self.sent: list[EvidenceEvent] = []

    def send(self, event: EvidenceEvent) -> None:
        self.sent.append(event)

    async def aclose(self) -> None:
        pass


class Gateway:
    """What of a gateway has to do with evidence."""

    def __init__(self, url: str, clock: Clock, **bounds: Any) -> None:
        self.url = url
        self.clock = clock
        self.bounds = Bounds(**bounds)
        self.messages = Messages()
        self.registry: CollectorRegistry
        self.journal: Journal
        self.store: DecisionStore
        self.watch: Watch

    async def open(self, *, limit: int = 8) -> Gateway:
        self.store = await DecisionStore.open(self.url, keys=KEYS)
        self.start(limit=limit)
        await self.watch.step()
        return self

    def start(self, *, limit: int = 8, page: int = 500) -> None:
        """A watch as a process that starts now would have it; the one before was killed."""
        if hasattr(self, "journal"):
            self.journal.close()
        self.registry = CollectorRegistry()
        self.journal = Journal(self.url)
        self.watch = Watch(
            Follower(self.journal, limit=limit, page=page),
            self.journal,
            self.store,
            bounds=self.bounds,
            gauges=Gauges(self.registry),
            messenger=self.messages,
            poll_seconds=0.05,
            log=build_log("critical"),
            clock=self.clock,
        )

    async def answer(self, number: int, tally: Tally = CALM, **changes: Any) -> None:
        """A request and its outcome, which ends now."""
        self.clock.now += 1
        await self.store.append_decision(decision_record(number))
        outcome: OutcomeRecord = outcome_record(number, finished_at=self.clock.now, **changes)
        execution = msgspec.structs.replace(outcome.execution, tally=tally)
        await self.store.append_outcome(msgspec.structs.replace(outcome, execution=execution))

    def requests(self) -> int:
        return sum(state.requests for state in self.watch.states)

    def gauge(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    async def aclose(self) -> None:
        await self.watch.aclose()
        await self.store.aclose()


async def demoted(gateway: Gateway) -> None:
    """Wait until a cell is."""
    async with asyncio.timeout(5):
        while not gateway.watch.demotions._whys:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)


@pytest.fixture
async def make(log_database: LogDatabase) -> AsyncIterator[Callable[..., Gateway]]:
    """Makes gateways that share a log and a clock."""
    clock, made = Clock(), list[Gateway]()

    def gateway(**bounds: Any) -> Gateway:
        made.append(Gateway(log_database.url, clock, **bounds))
        return made[-1]

    yield gateway
    for each in made:
        await each.aclose()


async def test_a_restart_goes_on_where_the_log_was_whatever_the_snapshot_says(
    make: Callable[..., Gateway],
) -> None:
    one = await make().open()
    await one.answer(1)
    await one.watch.step()
    await one.watch._save()
    # Killed: after the snapshot two more outcomes, one of them never looked at.
    await one.answer(2)
    await one.watch.step()
    await one.answer(3)

    one.start()
    await one.watch.step()
    assert one.requests() == 3
    assert one.watch.states[0].tally.num_tokens == 60
    assert one.watch.states[0].eprocess.log_products == pytest.approx({"leak": -0.3})

    await one.watch._save()
    one.start()
    await one.watch.step()
    await one.watch.step()
    assert one.requests() == 3


async def test_shadow_runs_are_counted_once_with_their_requests(
    make: Callable[..., Gateway],
) -> None:
    one = await make().open()
    for number, result in ((1, "equal"), (2, "different"), (3, "dropped")):
        await one.answer(number)
        await one.store.append_addendum(
            Shadow(
                decision_id=decision_record(number).decision_id,
                added_at=one.clock.now,
                result=result,  # type: ignore[arg-type]
            )
        )
        if number == 2:
            await one.watch.step()
            await one.watch._save()
    seen = Access(decision_id=decision_record(1).decision_id, added_at=9.0, by="ann", through="api")
    await one.store.append_addendum(seen)
    await one.watch.step()

    one.start(page=2)
    await one.watch.step()

    (state,) = one.watch.states
    assert (state.requests, state.shadow_runs, state.shadow_equal) == (3, 2, 1)


async def test_a_start_without_a_snapshot_reads_the_whole_log(
    make: Callable[..., Gateway],
) -> None:
    one = await make().open()
    for number in range(5):
        await one.answer(number)
    one.start(page=2)
    await one.watch.start()
    assert one.requests() == 5
    follower = Follower(one.journal, limit=8, page=2)
    follower.catch_up()
    assert sum(state.requests for state in follower.board.states) == 5


async def test_a_damaged_snapshot_is_made_again_from_the_log(
    make: Callable[..., Gateway], log_database: LogDatabase
) -> None:
    one = await make().open()
    await one.answer(1)
    await one.watch.step()
    await one.watch._save()
    log_database.run("UPDATE evidence_snapshots SET document = '{\"positions\": 1}'")

    one.start()
    await one.watch.step()
    assert one.requests() == 1


async def test_a_damaged_outcome_costs_no_other(
    make: Callable[..., Gateway], log_database: LogDatabase
) -> None:
    one = await make().open()
    for number in (1, 2, 3):
        await one.answer(number)
    log_database.run("UPDATE outcomes SET document = '{' WHERE decision_id = 'dec_000002'")
    await one.watch.step()
    await one.watch.step()
    assert one.requests() == 2


async def test_gateways_on_one_log_count_each_others_requests_once(
    make: Callable[..., Gateway],
) -> None:
    one, two = await make().open(), await make().open()
    for number in range(4):
        await (one, two)[number % 2].answer(number)
        await one.watch.step()
    await two.watch.step()
    assert (one.requests(), two.requests()) == (4, 4)

    # One leaves and another comes; what the first wrote last is not forgotten.
    await two.answer(4)
    await two.store.aclose()
    await one.watch.step()
    await one.watch.step()
    assert one.requests() == 5
    three = await make().open()
    assert three.requests() == 5


async def test_an_alarm_is_in_force_everywhere_recorded_once_and_after_a_restart(
    make: Callable[..., Gateway],
) -> None:
    one, two = await make().open(), await make().open()
    await one.answer(1, STRONG)
    await one.watch.step()
    await two.watch.step()

    for gateway in (one, two):
        (event,) = gateway.watch.last_events.values()
        assert (event.kind, event.cause, event.cell, event.demotes) == (
            "alarm",
            "e_value",
            CODE,
            True,
        )
        assert gateway.gauge("draftgate_demoted_cells") == 1
        assert CODE.text in gateway.watch.warnings()[0]
    assert len(one.journal.history()) == 1
    assert [len(one.messages.sent), len(two.messages.sent)] == [1, 0]
    assert one.gauge("draftgate_evidence_alarms_total", cause="e_value") == 1
    assert two.gauge("draftgate_evidence_alarms_total", cause="e_value") == 0
    labels = {"domain": "code", "mode": "speculative", "verifier": "coupled"}
    found = one.gauge("draftgate_evidence_log_e_value", **labels, model="small", draft="suffix")
    assert found == pytest.approx(20.0)

    one.start()
    await one.watch.step()
    assert one.watch.demotions._whys.keys() == {CODE.id}
    assert len(one.messages.sent) == 1


async def test_a_cleared_cell_stays_cleared_until_there_is_new_evidence(
    make: Callable[..., Gateway],
) -> None:
    one, two = await make().open(), await make().open()
    await one.answer(1, STRONG)
    for gateway in (one, two):
        await gateway.watch.step()
    one.clock.now += 1
    await one.watch.clear(CODE.id, by="ada", reason="The draft was rebuilt.")
    for gateway in (one, two, one):
        await gateway.watch.step()
        assert not gateway.watch.demotions._whys
        assert not gateway.watch.warnings()
        assert gateway.gauge("draftgate_demoted_cells") == 0
        (state,) = gateway.watch.states
        assert (state.requests, state.eprocess.log_e) == (1, 0.0)

    # Nor do the same outcomes speak again after a restart, with and without a snapshot.
    two.start()
    await two.watch.step()
    assert not two.watch.demotions._whys

    await two.answer(2, STRONG)
    await one.watch.step()
    assert one.watch.demotions._whys.keys() == {CODE.id}
    kinds = [event.kind for event in one.journal.history()]
    assert kinds == ["alarm", "clearing", "alarm"]
    assert [event.by for event in one.journal.history(CODE.id)] == ["", "ada", ""]


async def test_only_an_alarm_in_force_can_be_cleared(make: Callable[..., Gateway]) -> None:
    one, two = await make().open(), await make().open()
    await one.answer(1)
    await one.watch.step()
    with pytest.raises(NotFound, match="no evidence on a cell 'nowhere'"):
        await one.watch.clear("nowhere", by="ada", reason="x")
    with pytest.raises(Conflict, match="not in alarm"):
        await one.watch.clear(CODE.id, by="ada", reason="x")

    await one.answer(2, STRONG)
    for gateway in (one, two):
        await gateway.watch.step()
    await two.watch.clear(CODE.id, by="bob", reason="x")
    with pytest.raises(Conflict, match="Somebody else"):
        await one.watch.clear(CODE.id, by="ada", reason="x")
    assert len(one.journal.history()) == 2


async def test_an_alarm_that_cannot_be_recorded_is_in_force_and_recorded_later(
    make: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await make().open()
    await one.answer(1, STRONG)

    async def away(_: EvidenceEvent) -> bool:
        raise AuditUnavailable("the log is away")

    with monkeypatch.context() as patch:
        patch.setattr(one.store, "append_event", away)
        for _ in range(2):
            await one.watch.step()
            assert one.watch.demotions._whys.keys() == {CODE.id}
        assert one.journal.history() == ()
        assert len(one.messages.sent) == 1
        with pytest.raises(AuditUnavailable):
            await one.watch.clear(CODE.id, by="ada", reason="x")
    await one.watch.step()
    assert len(one.journal.history()) == 1
    assert len(one.messages.sent) == 1


async def test_without_demotion_an_alarm_is_told_and_nothing_else_follows(
    make: Callable[..., Gateway],
) -> None:
    one = await make(demote=False).open()
    await one.answer(1, STRONG)
    await one.watch.step()
    assert not one.watch.demotions._whys
    assert "is in alarm" in one.watch.warnings()[0]
    assert one.gauge("draftgate_demoted_cells") == 0


async def test_many_alarms_are_a_few_warnings_and_a_number(make: Callable[..., Gateway]) -> None:
    one = await make().open()
    for number in range(7):
        record = decision_record(number)
        request = msgspec.structs.replace(record.request, model=f"m{number}")
        await one.store.append_decision(msgspec.structs.replace(record, request=request))
        outcome = outcome_record(number, finished_at=2000.0, attestation="attestation_failed")
        await one.store.append_outcome(outcome)
    await one.watch.step()
    warnings = one.watch.warnings()
    assert len(warnings) == 6
    assert warnings[-1] == "and 2 more cells are in alarm"


async def test_a_watch_that_runs_sees_an_outcome_soon_after_it_is_noticed(
    make: Callable[..., Gateway],
) -> None:
    one = await make().open()
    one.start()
    await one.watch.start()
    await one.answer(1, STRONG)
    one.watch.notice()
    await demoted(one)


async def test_a_log_that_is_away_does_not_end_the_watch(
    make: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await make().open()
    with monkeypatch.context() as patch:

        def away() -> frozenset[str]:
            patch.undo()
            raise AuditUnavailable("away")

        await one.watch.start()
        patch.setattr(one.journal, "living", away)
        await one.answer(1, STRONG)
        one.watch.notice()
        await demoted(one)


async def test_verification_covers_alarms_and_clearings(
    make: Callable[..., Gateway], log_database: LogDatabase
) -> None:
    one = await make().open()
    await one.answer(1, STRONG)
    await one.watch.step()
    await one.watch.clear(CODE.id, by="ada", reason="mended")

    def check() -> bool:
        with open_holdings(log_database.url) as holdings:
            return verify(holdings, KEYS).verified

    assert check()
    (row,) = log_database.run("SELECT document FROM evidence_events WHERE kind = 'clearing'")
    changed = json.loads(row[0]) | {"by": "eve"}
    log_database.run(
        f"UPDATE evidence_events SET document = '{json.dumps(changed)}' WHERE kind = 'clearing'"
    )
    assert not check()


async def test_a_damaged_event_costs_no_start(
    make: Callable[..., Gateway], log_database: LogDatabase
) -> None:
    one = await make().open()
    await one.answer(1, STRONG)
    await one.watch.step()
    assert len(one.watch.last_events) == 1
    log_database.run("UPDATE evidence_events SET document = '{'")

    two = await make().open()

    assert two.requests() == 1


async def test_a_watch_that_is_closed_as_an_outcome_comes_ends(
    make: Callable[..., Gateway],
) -> None:
    one = await make().open()
    for _ in range(5):
        one.start()
        one.watch._poll_seconds = 60.0
        await one.watch.start()
        await asyncio.sleep(0.1)
        one.watch.notice()
        async with asyncio.timeout(5):
            await one.watch.aclose()
