"""Whatever is done to a log, verification names it and the first record that it was done to."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.audit.anchor import Anchor, Anchored, read_anchor
from gateway.audit.chain import Chain, Head
from gateway.audit.findings import FaultKind, Report
from gateway.audit.holdings import open_holdings
from gateway.audit.keys import Key, Keyring
from gateway.audit.ledger import Pace
from gateway.audit.record import PolicyChange
from gateway.audit.retention import Limits
from gateway.audit.schema import seals
from gateway.audit.store import DecisionStore
from gateway.audit.verification import verify
from tests.databases import LogDatabase, SqliteDatabase
from tests.records import decision_record, outcome_record

OLD = Key("old", b"o" * 32)
NEW = Key("new", b"n" * 32)
KEYS = Keyring([OLD])


class Log:
    """A log, and what is found when it is verified."""

    def __init__(self, database: LogDatabase, anchor: Path) -> None:
        self.database = database
        self.anchor = anchor
        self.number = 0

    async def write(
        self,
        requests: int = 8,
        *,
        keys: Keyring = KEYS,
        open_ones: int = 0,
        rows: int = 1000,
        **options: Any,
    ) -> None:
        """A gateway that starts, answers requests one after the other, and stops."""
        store = await DecisionStore.open(
            self.database.url, keys=keys, anchor=Anchor(self.anchor), pace=Pace(rows), **options
        )
        for _ in range(requests):
            await store.append_decision(decision_record(self.number))
            await store.append_outcome(outcome_record(self.number))
            self.number += 1
        for _ in range(open_ones):
            await store.append_decision(decision_record(self.number))
            self.number += 1
        await store.aclose()

    def verify(self, keys: Keyring = KEYS, *, anchored: bool = False, **options: Any) -> Report:
        """The report on the log as it is now."""
        anchor = list(read_anchor(self.anchor)) if anchored else None
        with open_holdings(self.database.url) as holdings:
            return verify(holdings, keys, anchor=anchor, **options)

    def run(self, *statements: str) -> None:
        """What somebody with the database's password does."""
        for statement in statements:
            self.database.run(statement)

    def writers(self) -> list[str]:
        """All writers, in the order in which they came."""
        found = self.database.run("SELECT writer FROM seals WHERE kind = 'opening' ORDER BY seq")
        return [writer for (writer,) in found]


@pytest.fixture
def log(log_database: LogDatabase, tmp_path: Path) -> Log:
    return Log(log_database, tmp_path / "anchor.jsonl")


@pytest.fixture
def file_log(tmp_path: Path) -> Log:
    """Where the database makes no difference."""
    return Log(SqliteDatabase(tmp_path / "file.db"), tmp_path / "anchor.jsonl")


def _first(report: Report) -> tuple[FaultKind, int | None, str]:
    assert not report.verified
    fault = report.faults[0]
    return fault.kind, fault.position, fault.record


async def test_a_log_that_nobody_touched_verifies(log: Log) -> None:
    await log.write(open_ones=2)
    await log.write(rows=5)
    report = log.verify(anchored=True)

    assert report.verified, report.faults
    assert report.records == {"decisions": 18, "outcomes": 18, "seals": 7}
    assert report.keys == {"old": 43}
    assert report.anchored == 7
    assert report.notes == ()


async def test_what_is_true_of_an_empty_log(log: Log) -> None:
    await log.write(0)
    assert log.verify(anchored=True).records == {"seals": 2}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE decisions SET document = replace(document, 'ada', 'eve') "
        "WHERE decision_id = 'dec_000003'",
        "UPDATE decisions SET rule = 'other' WHERE decision_id = 'dec_000003'",
        "UPDATE decisions SET created_at = created_at + 1e-3 WHERE decision_id = 'dec_000003'",
        "UPDATE decisions SET domain = NULL WHERE decision_id = 'dec_000003'",
        "UPDATE chain SET digest = mac WHERE record = 'dec_000003' AND table_name = 'decisions'",
        "UPDATE chain SET mac = digest WHERE record = 'dec_000003' AND table_name = 'decisions'",
        "UPDATE chain SET recorded_at = 0 WHERE record = 'dec_000003' AND table_name = 'decisions'",
        "UPDATE chain SET table_name = 'other' "
        "WHERE record = 'dec_000003' AND table_name = 'decisions'",
    ],
)
async def test_a_changed_record_is_named(log: Log, statement: str) -> None:
    await log.write()
    log.run(statement)
    assert _first(log.verify()) == (FaultKind.TAMPERED, 8, "dec_000003")


async def test_a_changed_seal_is_named(log: Log) -> None:
    await log.write()
    log.run("UPDATE seals SET document = replace(document, '{}', '{ }') WHERE kind = 'opening'")
    kind, position, _ = _first(log.verify())
    assert (kind, position) == (FaultKind.TAMPERED, 1)


async def test_a_deleted_record_is_named(log: Log) -> None:
    await log.write()
    log.run("DELETE FROM outcomes WHERE decision_id = 'dec_000003'")
    report = log.verify()
    assert _first(report) == (FaultKind.REMOVED, 9, "dec_000003")
    assert report.fault_count == 1


async def test_a_record_deleted_with_its_link_leaves_a_gap(log: Log) -> None:
    await log.write()
    log.run(
        "DELETE FROM outcomes WHERE decision_id = 'dec_000003'",
        "DELETE FROM chain WHERE position = 9",
    )
    report = log.verify()
    assert _first(report) == (FaultKind.REMOVED, 10, "dec_000004")
    assert "links 9 to 9 before it are gone" in report.faults[0].detail


async def test_a_deletion_that_was_smoothed_over_shows_by_the_codes(log: Log) -> None:
    await log.write()
    log.run(
        "DELETE FROM outcomes WHERE decision_id = 'dec_000003'",
        "DELETE FROM chain WHERE position = 9",
        *(f"UPDATE chain SET position = {n - 1} WHERE position = {n}" for n in range(10, 19)),
    )
    report = log.verify()
    assert _first(report) == (FaultKind.REMOVED, 9, "dec_000004")
    assert "renumbered" in report.faults[0].detail


async def test_a_missing_beginning_is_no_retention_without_a_seal(log: Log) -> None:
    await log.write()
    log.run(
        "DELETE FROM outcomes WHERE decision_id = 'dec_000000'",
        "DELETE FROM decisions WHERE decision_id = 'dec_000000'",
        "DELETE FROM chain WHERE position <= 3",
    )
    assert _first(log.verify())[:2] == (FaultKind.REMOVED, 4)


async def test_swapped_records_are_told_from_changed_ones(log: Log) -> None:
    await log.write()
    log.run(
        "UPDATE chain SET position = 100 WHERE position = 4",
        "UPDATE chain SET position = 4 WHERE position = 6",
        "UPDATE chain SET position = 6 WHERE position = 100",
    )
    report = log.verify()
    assert _first(report) == (FaultKind.REORDERED, 4, "dec_000002")
    assert "position 6" in report.faults[0].detail


async def test_records_swapped_under_their_codes_are_reordered_too(log: Log) -> None:
    await log.write()
    columns = ("record", "digest", "size", "recorded_at", "table_name")
    other = "(SELECT {0} FROM copied AS o WHERE o.position = 10 - chain.position)"
    swap = ", ".join(f"{column} = {other.format(column)}" for column in columns)
    log.run("CREATE TABLE copied AS SELECT * FROM chain")
    log.run(f"UPDATE chain SET {swap} WHERE position IN (4, 6)")
    assert _first(log.verify()) == (FaultKind.REORDERED, 4, "dec_000002")


COPY_3 = (
    "INSERT INTO decisions (decision_id, created_at, writer, caller, model, domain, mode, rule, "
    "document) SELECT 'dec_999999', created_at, writer, caller, model, domain, mode, rule, "
    "document FROM decisions WHERE decision_id = 'dec_000003'"
)


async def test_a_record_that_no_chain_has_was_inserted(log: Log) -> None:
    await log.write()
    log.run(COPY_3)
    assert _first(log.verify()) == (FaultKind.INSERTED, None, "dec_999999")


async def test_a_record_inserted_into_the_chain_is_named(log: Log) -> None:
    await log.write()
    log.run(
        COPY_3,
        *(f"UPDATE chain SET position = {n + 1} WHERE position = {n}" for n in range(18, 8, -1)),
        "INSERT INTO chain SELECT writer, 9, recorded_at, table_name, 'dec_999999', size, digest, "
        "key_id, mac FROM chain WHERE position = 8",
    )
    assert _first(log.verify()) == (FaultKind.INSERTED, 9, "dec_999999")


async def test_a_record_after_the_end_of_a_chain_was_inserted(log: Log) -> None:
    await log.write(2)
    log.run(
        COPY_3.replace("dec_000003", "dec_000001"),
        "INSERT INTO chain SELECT writer, 7, recorded_at, table_name, 'dec_999999', size, digest, "
        "key_id, mac FROM chain WHERE position = 4",
    )
    kind, position, record = _first(log.verify())
    assert (position, record) == (7, "dec_999999")
    assert kind in (FaultKind.INSERTED, FaultKind.TAMPERED)


async def test_a_chain_of_somebody_without_the_key_was_inserted(log: Log) -> None:
    await log.write()
    await log.write(2, keys=Keyring([Key("old", b"x" * 32)]))
    report = log.verify()
    assert report.faults[0].kind is FaultKind.INSERTED
    assert report.faults[0].writer == log.writers()[1]
    assert report.fault_count == 1


async def test_an_end_that_was_cut_off_shows_by_the_next_opening(log: Log) -> None:
    await log.write()
    await log.write()
    first = log.writers()[0]
    log.run(
        f"DELETE FROM chain WHERE position > 12 AND writer = '{first}'",
        *(
            f"DELETE FROM {table} WHERE decision_id IN ('dec_000006', 'dec_000007')"
            for table in ("outcomes", "decisions")
        ),
        "DELETE FROM outcomes WHERE decision_id = 'dec_000005'",
        f"DELETE FROM seals WHERE writer = '{first}' AND kind = 'closing'",
    )
    report = log.verify()
    fault = report.faults[0]
    assert (fault.kind, fault.writer, fault.position) == (FaultKind.TRUNCATED, first, 13)
    assert report.fault_count == 1


async def test_the_end_of_the_newest_chain_shows_by_the_anchor_alone(log: Log) -> None:
    await log.write()
    log.run(
        "DELETE FROM chain WHERE position > 16",
        "DELETE FROM outcomes WHERE decision_id = 'dec_000007'",
        "DELETE FROM seals WHERE kind = 'closing'",
    )
    report = log.verify()
    assert report.verified
    assert any("cannot be told" in note for note in report.notes)
    assert any("1 chain is not closed" in note for note in report.notes)
    kind, position, _ = _first(log.verify(anchored=True))
    assert (kind, position) == (FaultKind.TRUNCATED, 17)


async def test_a_whole_chain_that_is_gone_is_named(log: Log) -> None:
    await log.write()
    await log.write()
    first = log.writers()[0]
    ids = ", ".join(f"'dec_{number:06d}'" for number in range(8))
    log.run(
        f"DELETE FROM chain WHERE writer = '{first}'",
        f"DELETE FROM seals WHERE writer = '{first}'",
        f"DELETE FROM outcomes WHERE decision_id IN ({ids})",
        f"DELETE FROM decisions WHERE decision_id IN ({ids})",
    )
    fault = log.verify().faults[0]
    assert (fault.kind, fault.writer) == (FaultKind.REMOVED, first)


async def test_keys_that_are_missing_unknown_or_wrong_are_told_apart(log: Log) -> None:
    await log.write()
    assert _first(log.verify(Keyring()))[0] is FaultKind.MISSING_KEY
    assert _first(log.verify(Keyring([NEW])))[0] is FaultKind.UNKNOWN_KEY
    report = log.verify(Keyring([Key("old", b"x" * 32)]), anchored=False)
    assert _first(report)[:2] == (FaultKind.WRONG_KEY, 1)
    assert report.fault_count == 1


async def test_a_log_without_a_key_says_so_and_still_shows_accidents(log: Log) -> None:
    await log.write(keys=Keyring())
    assert _first(log.verify(Keyring()))[0] is FaultKind.NOT_SIGNED
    report = log.verify(Keyring(), allow_unsigned=True)
    assert report.verified
    assert report.notes[0].startswith("Not signed")
    log.run("UPDATE decisions SET rule = 'other' WHERE decision_id = 'dec_000003'")
    report = log.verify(Keyring(), allow_unsigned=True)
    assert _first(report) == (FaultKind.TAMPERED, 8, "dec_000003")


async def test_a_key_vouches_for_what_was_there_unsigned_when_it_came(log: Log) -> None:
    await log.write(3, keys=Keyring())
    await log.write(3)
    report = log.verify()
    assert report.verified, report.faults
    assert report.notes[0].startswith("8 records were not signed")
    # What comes unsigned after it, nothing vouches for.
    await log.write(3, keys=Keyring())
    fault = log.verify(allow_unsigned=True).faults[0]
    assert (fault.kind, fault.writer) == (FaultKind.NOT_SIGNED, log.writers()[2])


async def test_a_new_key_is_introduced_by_the_old_one(log: Log) -> None:
    await log.write(2)
    await log.write(2, keys=Keyring([NEW, OLD]))
    both = log.verify(Keyring([NEW, OLD]), anchored=True)
    assert both.verified, both.faults
    assert both.keys == {"old": 7, "new": 6}
    assert both.notes == ()
    assert _first(log.verify(Keyring([NEW])))[0] is FaultKind.UNKNOWN_KEY
    impostor = log.verify(Keyring([Key("new", b"x" * 32), OLD]))
    assert {fault.kind for fault in impostor.faults} >= {FaultKind.WRONG_KEY}


async def test_a_new_key_without_the_old_one_is_noted(log: Log) -> None:
    await log.write(2)
    await log.write(2, keys=Keyring([NEW]))
    report = log.verify(Keyring([NEW, OLD]))
    assert report.verified
    assert report.notes[0].startswith("No key introduced all but one of these keys: ")


async def test_an_older_copy_that_went_on_is_a_fork(file_log: Log, tmp_path: Path) -> None:
    await file_log.write(3)
    older = tmp_path / "older.db"
    shutil.copy(tmp_path / "file.db", older)
    await file_log.write(2)
    shutil.copy(older, tmp_path / "file.db")
    await file_log.write(2)
    # The anchor has seen a writer that this history never had.
    fault = file_log.verify(anchored=True).faults[0]
    assert fault.kind is FaultKind.REMOVED
    assert file_log.verify().verified


async def test_two_histories_of_one_chain_are_a_fork(file_log: Log) -> None:
    await file_log.write(3)
    opening = next(read_anchor(file_log.anchor))
    assert opening is not None
    # As if its process had been copied, and the copy had gone on.
    fork = Chain(opening.link.writer)
    fork.head = Head(1, opening.link.mac)
    row = {**opening.row, "document": '{"position":1,"head":"x"}', "kind": "checkpoint"}
    link = fork.link(seals, "77", row, OLD, 5.0)
    Anchor(file_log.anchor).append([Anchored(previous=opening.link.mac, link=link, row=row)])
    kind, position, _ = _first(file_log.verify(anchored=True))
    assert (kind, position) == (FaultKind.FORKED, 2)


async def test_a_forged_line_of_the_anchor_is_no_evidence(file_log: Log) -> None:
    await file_log.write(3)
    text = file_log.anchor.read_text()
    file_log.anchor.write_text(text.replace('"position":1,', '"position":9,') + "{}\n")
    report = file_log.verify(anchored=True)
    assert [fault.kind for fault in report.faults] == [FaultKind.TAMPERED] * 2
    assert "line 1 of the anchor" in report.faults[0].detail
    assert "line 3 of the anchor cannot be read" in report.faults[1].detail


async def test_what_was_there_before_there_were_chains_is_adopted(file_log: Log) -> None:
    await file_log.write(5, keys=Keyring())
    file_log.run("DELETE FROM chain", "DELETE FROM seals")
    await file_log.write(2)
    report = file_log.verify()
    assert report.verified, report.faults
    assert report.records == {"decisions": 7, "outcomes": 7, "seals": 2}
    file_log.run("UPDATE outcomes SET mode = 'hybrid' WHERE decision_id = 'dec_000001'")
    assert _first(file_log.verify())[0::2] == (FaultKind.TAMPERED, "dec_000001")


def _change(number: int) -> PolicyChange:
    return PolicyChange(
        changed_at=float(number),
        policy="p",
        policy_hash=f"{number:064d}",
        previous_hash=None,
        source="start",
        files={"p.yaml": "version: 1"},
    )


@pytest.fixture
def clock() -> Callable[[], float]:
    """Ten seconds later at every look."""
    ticks = iter(range(0, 1_000_000, 10))
    return lambda: float(next(ticks))


async def test_retention_drops_what_is_old_and_the_log_still_verifies(
    log: Log, clock: Callable[[], float]
) -> None:
    for _ in range(3):
        await log.write(4, clock=clock)
    store = await DecisionStore.open(
        log.database.url, keys=KEYS, anchor=Anchor(log.anchor), clock=clock
    )
    before = log.verify(anchored=True)
    cut = 0
    for age in (400.0, 300.0, 250.0):
        cut += await store.prune(Limits(seconds=age))
    await store.aclose()
    ((steps,),) = log.database.run("SELECT count(*) FROM seals WHERE kind = 'pruning'")
    report = log.verify(anchored=True)

    assert before.verified, before.faults
    assert report.verified, report.faults
    assert 10 < cut == report.dropped
    assert sum(report.records.values()) == sum(before.records.values()) - cut + steps + 1
    ((decisions,),) = log.database.run("SELECT count(*) FROM decisions")
    ((outcomes,),) = log.database.run("SELECT count(*) FROM outcomes")
    assert 0 < decisions == outcomes < 12


async def test_retention_by_size_keeps_the_newest(log: Log) -> None:
    await log.write(20)
    await log.write(20)
    store = await DecisionStore.open(log.database.url, keys=KEYS, anchor=Anchor(log.anchor))
    assert await store.prune(Limits(size=1_000_000)) == 0
    assert await store.prune(Limits(size=50_000)) > 20
    assert await store.prune(Limits(size=50_000)) == 0
    await store.append_change(_change(1))
    await store.prune(Limits(size=1))
    await store.aclose()
    report = log.verify(anchored=True)

    assert report.verified, report.faults
    assert log.database.run("SELECT count(*) FROM decisions") == [(0,)]
    assert log.database.run("SELECT count(*) FROM policy_changes") == [(1,)]


async def test_retention_leaves_what_still_runs(log: Log) -> None:
    store = await DecisionStore.open(log.database.url, keys=KEYS)
    for number in range(6):
        await store.append_decision(decision_record(number))
    for number in (0, 1, 2, 4):
        await store.append_outcome(outcome_record(number))
    await store.prune(Limits(size=1))
    assert log.database.run("SELECT count(*) FROM decisions") == [(3,)]
    await store.append_outcome(outcome_record(3))
    await store.append_outcome(outcome_record(5))
    await store.aclose()
    assert log.verify().verified


async def test_what_retention_kept_may_be_neither_changed_nor_deleted(log: Log) -> None:
    store = await DecisionStore.open(log.database.url, keys=KEYS)
    await store.append_change(_change(1))
    await store.append_change(_change(2))
    await store.prune(Limits(size=1))
    await store.aclose()
    report = log.verify()
    assert report.verified, report.faults
    log.run("UPDATE policy_changes SET policy_hash = 'x' WHERE changed_at = 1")
    assert _first(log.verify())[0] is FaultKind.TAMPERED
    log.run("DELETE FROM policy_changes WHERE changed_at = 1")
    assert _first(log.verify())[0] is FaultKind.REMOVED


async def test_nobody_without_the_key_can_make_a_seal_of_retention(log: Log) -> None:
    await log.write(4)
    store = await DecisionStore.open(log.database.url)
    await store.prune(Limits(size=1))
    await store.aclose()
    await log.write(1)
    assert not log.verify().verified


async def test_two_gateways_prune_one_log_at_once(log: Log) -> None:
    await log.write(10)
    await log.write(10)
    stores = [await DecisionStore.open(log.database.url, keys=KEYS) for _ in range(2)]
    await asyncio.gather(*(store.prune(Limits(size=20_000)) for store in stores))
    await stores[0].prune(Limits(size=1))
    # The chain of the other is gone as far as it was, and goes on.
    await stores[1].append_decision(decision_record(500))
    for store in stores:
        await store.aclose()
    report = log.verify()
    assert report.verified, report.faults


async def test_two_gateways_make_two_chains(log: Log) -> None:
    stores = [await DecisionStore.open(log.database.url, keys=KEYS) for _ in range(2)]
    await asyncio.gather(
        *(stores[n % 2].append_decision(decision_record(n)) for n in range(40)),
    )
    for store in stores:
        await store.aclose()
    report = log.verify()
    assert report.verified, report.faults
    assert report.chains == 2


async def test_a_clock_that_goes_back_is_noted_and_changes_no_order(file_log: Log) -> None:
    times = iter([1000.0] * 9 + [10.0] * 100)
    await file_log.write(6, clock=lambda: next(times))
    report = file_log.verify()
    assert report.verified, report.faults
    assert any("clock went back 1 times" in note for note in report.notes)


async def test_checkpoints_come_after_so_many_records_and_so_long(
    file_log: Log,
) -> None:
    store = await DecisionStore.open(
        file_log.database.url, keys=KEYS, anchor=Anchor(file_log.anchor), pace=Pace(4, 0.01)
    )
    for number in range(8):
        await store.append_decision(decision_record(number))
    kinds = file_log.database.run("SELECT kind FROM seals")
    assert kinds.count(("checkpoint",)) >= 2
    await store.append_decision(decision_record(8))
    newest = "SELECT table_name FROM chain ORDER BY position DESC LIMIT 1"
    for _ in range(500):
        if file_log.database.run(newest) == [("seals",)]:
            break
        await asyncio.sleep(0.01)
    quiet = len(file_log.database.run("SELECT kind FROM seals"))
    await asyncio.sleep(0.05)
    assert quiet == len(file_log.database.run("SELECT kind FROM seals"))
    await store.aclose()
    assert file_log.verify(anchored=True).verified


async def test_an_anchor_that_cannot_be_written_costs_no_record(
    file_log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await DecisionStore.open(
        file_log.database.url, keys=KEYS, anchor=Anchor(file_log.anchor)
    )
    file_log.anchor.unlink()
    file_log.anchor.mkdir()
    await store.append_decision(decision_record())
    await store.aclose()
    assert "anchor_not_written" in capsys.readouterr().out
    assert file_log.verify().verified
