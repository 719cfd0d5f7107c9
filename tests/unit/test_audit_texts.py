"""Captured texts in the log: locked, chained by their digest, erased, dropped, moved; on each database."""

from __future__ import annotations

import base64
import random
from pathlib import Path

import msgspec
import pytest

from gateway.archive import open_texts
from gateway.audit import database
from gateway.audit.archive import FileHoldings, open_sink, open_source, write_archive
from gateway.audit.copying import copy_in
from gateway.audit.erasure import Wanted
from gateway.audit.findings import Report
from gateway.audit.holdings import open_holdings
from gateway.audit.keys import keyring
from gateway.audit.query import DecisionReader, Entry
from gateway.audit.record import Access, Shadow, TextFacts
from gateway.audit.retention import Limits
from gateway.audit.store import DecisionStore
from gateway.audit.texts import Captured, ciphertext_digest
from gateway.audit.vault import Locked, Vault, open_vault, purpose
from gateway.audit.verification import verify
from gateway.errors import AuditUnavailable, ConfigError, TextLocked
from gateway.types import Caller
from tests.databases import LogDatabase, SqliteDatabase
from tests.records import decision_record, outcome_record

KEYS = keyring([("", b"s" * 64)])
VAULT = open_vault([("new", b"t" * 64), ("old", b"u" * 64)])
WANTED = Wanted(by="ada", reason="asked for it")


def captured(number: int, kind: str = "prompt", text: bytes = b"the secret text") -> Captured:
    assert VAULT is not None
    decision_id = f"dec_{number:06d}"
    locked = VAULT.lock(text, purpose(decision_id, kind))
    facts = TextFacts(
        decision_id=decision_id,
        kind=kind,  # type: ignore[arg-type]
        captured_at=5.0,
        size=len(text),
        key_id=locked.key_id,
        digest=ciphertext_digest(locked.ciphertext),
    )
    return Captured(facts, locked.ciphertext)


async def fill(store: DecisionStore, numbers: range, *, callers: int = 2) -> None:
    for number in numbers:
        caller = Caller(f"caller{number % callers}")
        await store.append_decision(decision_record(number, caller=caller))
        await store.append_outcome(outcome_record(number))
        await store.append_text(captured(number))
        await store.append_text(captured(number, "answer", f"answer {number}".encode()))


def verified(url: str) -> Report:
    with open_holdings(url) as holdings:
        return verify(holdings, KEYS)


async def entry(url: str, number: int) -> Entry | None:
    reader = await DecisionReader.open(url)
    try:
        return await reader.get(f"dec_{number:06d}")
    finally:
        await reader.aclose()


async def test_a_text_comes_back_as_it_was_and_only_after_that_is_on_record(
    log_database: LogDatabase,
) -> None:
    store = await DecisionStore.open(log_database.url, keys=KEYS)
    reader = await DecisionReader.open(log_database.url)
    await fill(store, range(2))
    access = Access(decision_id="dec_000001", added_at=9.0, by="ada", through="command")

    found = await open_texts(reader, store, VAULT, access)

    assert found == {"prompt": "the secret text", "answer": "answer 1"}
    seen = await reader.get("dec_000001")
    assert seen is not None
    assert seen.accesses == (access,)
    assert [facts.kind for facts in seen.texts] == ["prompt", "answer"]
    assert not seen.erased
    assert (
        log_database.run("SELECT count(*) FROM texts WHERE ciphertext LIKE '%secret%'")[0][0] == 0
    )
    await store.aclose()
    with pytest.raises(AuditUnavailable):  # a closed log: what cannot be recorded is not shown
        await open_texts(reader, store, VAULT, access)
    with pytest.raises(TextLocked, match="no key to read it"):
        await open_texts(reader, store, None, access)
    await reader.aclose()
    assert verified(log_database.url).verified


async def test_erased_texts_are_gone_and_the_log_verifies_and_says_who_and_why(
    log_database: LogDatabase,
) -> None:
    store = await DecisionStore.open(log_database.url, keys=KEYS)
    await fill(store, range(6))

    erased = await store.erase(wanted(caller="caller1", before=1004.0))

    assert erased.requests == 2  # 1 and 3; 5 is not before
    assert erased.is_scrubbed
    left = log_database.run("SELECT DISTINCT decision_id FROM texts WHERE ciphertext IS NOT NULL")
    assert {row[0] for row in left} == {f"dec_{n:06d}" for n in (0, 2, 4, 5)}
    again = await store.erase(wanted(caller="caller1", before=1004.0))
    assert again.requests == 0
    await store.aclose()
    report = verified(log_database.url)
    assert report.verified
    assert "The texts of 2 requests were erased, as seals say." in report.notes
    ((document,),) = log_database.run("SELECT document FROM seals WHERE kind = 'erasure'")
    said = msgspec.json.decode(document)
    assert (said["by"], said["reason"], said["caller"]) == ("ada", "asked for it", "caller1")
    assert said["decision_ids"] == ["dec_000001", "dec_000003"]
    found = await entry(log_database.url, 1)
    assert found is not None
    assert found.erased
    assert [facts.size for facts in found.texts] == [15, 8]


def wanted(**changes: object) -> Wanted:
    return WANTED._replace(**changes)  # type: ignore[arg-type]


async def test_many_texts_are_erased_in_steps(log_database: LogDatabase, monkeypatch) -> None:
    monkeypatch.setattr("gateway.audit.erasure.STEP", 2)
    store = await DecisionStore.open(log_database.url, keys=KEYS)
    await fill(store, range(5))

    assert (await store.erase(WANTED)).requests == 5
    await store.aclose()

    assert log_database.run("SELECT count(*) FROM seals WHERE kind = 'erasure'")[0][0] == 3
    assert verified(log_database.url).verified


@pytest.mark.parametrize(
    ("statement", "kind", "said"),
    [
        ("UPDATE texts SET ciphertext = NULL WHERE seq = 1", "removed", "no seal says that"),
        ("UPDATE texts SET ciphertext = 'AAAA' WHERE seq = 1", "tampered", "not what was captured"),
        (
            "UPDATE texts SET ciphertext = (SELECT ciphertext FROM texts WHERE seq = 3) WHERE seq = 1",
            "tampered",
            "not what was captured",
        ),
        ("UPDATE texts SET stored = 1 WHERE seq = 1", "tampered", "not what was recorded"),
        ("DELETE FROM texts WHERE seq = 1", "removed", "its record is gone"),
        ("DELETE FROM addenda", "removed", "its record is gone"),
        ("UPDATE addenda SET document = '{}'", "tampered", "not what was recorded"),
        (
            "INSERT INTO texts (decision_id, kind, captured_at, writer, stored, document) "
            "VALUES ('dec_000000', 'other', 1, 'w', 0, '{}')",
            "inserted",
            "no chain has this record",
        ),
    ],
)
async def test_a_text_that_was_changed_or_taken_away_shows(
    log_database: LogDatabase, statement: str, kind: str, said: str
) -> None:
    store = await DecisionStore.open(log_database.url, keys=KEYS)
    await fill(store, range(2))
    shadow = Shadow(decision_id="dec_000000", added_at=7.0, result="equal", num_tokens=3)
    await store.append_addendum(shadow)
    await store.aclose()
    assert verified(log_database.url).verified

    log_database.run(statement)

    report = verified(log_database.url)
    assert not report.verified
    assert (report.faults[0].kind.value, said in report.faults[0].detail) == (kind, True)


def test_a_text_is_locked_for_one_place_by_one_key() -> None:
    assert VAULT is not None
    locked = VAULT.lock(b"hello", purpose("dec_1", "prompt"))

    assert VAULT.unlock(locked, purpose("dec_1", "prompt")) == b"hello"
    assert VAULT.lock(b"hello", purpose("dec_1", "prompt")).ciphertext != locked.ciphertext
    changed = base64.b64encode(b"\1" + base64.b64decode(locked.ciphertext)[1:]).decode()
    for wrong, place in (
        (locked, purpose("dec_1", "answer")),
        (locked, purpose("dec_2", "prompt")),
        (Locked("old", locked.ciphertext), purpose("dec_1", "prompt")),
        (Locked("new", changed), purpose("dec_1", "prompt")),
        (Locked("new", "?"), purpose("dec_1", "prompt")),
        (Locked("", locked.ciphertext), purpose("dec_1", "prompt")),
        (Locked("lost", locked.ciphertext), purpose("dec_1", "prompt")),
    ):
        with pytest.raises(TextLocked):
            VAULT.unlock(wrong, place)


def test_keys_rotate_and_a_weak_one_is_refused() -> None:
    before = open_vault([("old", b"u" * 64)])
    assert before is not None
    assert VAULT is not None

    assert VAULT.unlock(before.lock(b"x", "p"), "p") == b"x"
    assert VAULT.lock(b"x", "p").key_id == "new"
    assert open_vault([]) is None
    with pytest.raises(ConfigError, match=r"audit\.text\.keys: the key 'k' has 5 characters"):
        open_vault([("k", b"short")])
    with pytest.raises(ValueError, match="needs a key"):
        Vault(keyring([]))


def _remains(path: Path, texts: list[str]) -> list[str]:
    """Which of the texts are in any file of the database, whole or in a larger piece."""
    raw = b"".join(
        file.read_bytes() for file in path.parent.glob(f"{path.name}*") if file.is_file()
    )
    return [text for text in texts if any(piece in raw for piece in _pieces(text))]


def _pieces(text: str) -> list[bytes]:
    return [text[at : at + 24].encode() for at in range(0, len(text) - 24, 24)]


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_of_an_erased_text_is_left_in_the_files(tmp_path: Path, seed: int) -> None:
    draw, place = random.Random(seed), SqliteDatabase(tmp_path / "decisions.db")
    store = await DecisionStore.open(place.url, keys=KEYS)
    held: dict[int, str] = {}
    for number in range(60):
        await store.append_decision(decision_record(number))
        await store.append_outcome(outcome_record(number))
        one = captured(number, text=draw.randbytes(draw.choice([40, 300, 2500, 9000])))
        held[number] = one.ciphertext or ""
        await store.append_text(one)
    assert _remains(place.path, list(held.values())) == list(held.values())
    gone = draw.sample(sorted(held), 20)

    for number in gone:
        await store.erase(wanted(decision_id=f"dec_{number:06d}"))

    left = [held[number] for number in held if number not in gone]
    assert _remains(place.path, [held[number] for number in gone]) == []
    assert _remains(place.path, left) == left
    await store.prune(Limits(seconds=0.0))
    await store.erase(WANTED)
    await store.aclose()
    assert _remains(place.path, list(held.values())) == []


async def test_a_reader_in_the_way_is_told_of(tmp_path: Path) -> None:
    place = SqliteDatabase(tmp_path / "decisions.db")
    store = await DecisionStore.open(place.url, keys=KEYS, busy_seconds=0.1)
    await fill(store, range(1))
    engine = database.connect_reader(database.locate(place.url), 1.0)
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT * FROM texts").all()
        assert not (await store.erase(WANTED)).is_scrubbed
    engine.dispose()

    assert (await store.erase(WANTED)).is_scrubbed
    await store.aclose()


async def test_retention_drops_texts_with_their_requests_and_remembers_erasures(
    log_database: LogDatabase,
) -> None:
    clock = [1000.0]
    store = await DecisionStore.open(log_database.url, keys=KEYS, clock=lambda: clock[0])
    await fill(store, range(2))
    await store.append_addendum(Shadow(decision_id="dec_000000", added_at=1.0, result="equal"))
    other = await DecisionStore.open(log_database.url, keys=KEYS, clock=lambda: 900.0)
    await other.erase(wanted(decision_id="dec_000001"))
    await other.aclose()

    # The erasure's own chain is older than what it is about: its seal goes first.
    assert await store.prune(Limits(seconds=50.0))
    assert verified(log_database.url).verified
    assert log_database.run("SELECT count(*) FROM seals WHERE kind = 'erasure'")[0][0] == 0

    clock[0] = 2000.0
    await store.prune(Limits(seconds=50.0))
    await store.aclose()
    assert log_database.run("SELECT count(*) FROM texts")[0][0] == 0
    assert log_database.run("SELECT count(*) FROM addenda")[0][0] == 0
    assert verified(log_database.url).verified


async def test_retention_counts_texts_by_their_size(log_database: LogDatabase) -> None:
    clock = [1000.0]
    store = await DecisionStore.open(log_database.url, keys=KEYS, clock=lambda: clock[0])
    for number in range(10):
        await store.append_decision(decision_record(number))
        await store.append_outcome(outcome_record(number))
        await store.append_text(captured(number, text=b"x" * 100_000))
    clock[0] += 1

    await store.prune(Limits(size=700_000))
    await store.aclose()

    assert 2 <= log_database.run("SELECT count(*) FROM texts")[0][0] <= 5
    assert verified(log_database.url).verified


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
@pytest.mark.parametrize("texts", [False, True])
async def test_a_file_holds_texts_only_where_they_are_asked_for(
    log_database: LogDatabase, tmp_path: Path, format_: str, texts: bool
) -> None:
    store = await DecisionStore.open(log_database.url, keys=KEYS)
    await fill(store, range(3))
    await store.erase(wanted(decision_id="dec_000002"))
    await store.aclose()
    path = tmp_path / f"log.{format_}"
    with open_holdings(log_database.url) as holdings:
        sink = open_sink(path, format_)
        for _ in write_archive(holdings, sink, KEYS, texts=texts):
            pass
        sink.close()

    holdings = FileHoldings(open_source(path))
    there = [held.row["ciphertext"] for held in holdings.links() if held.link.table_name == "texts"]
    assert [bool(text) for text in there] == [texts] * 4 + [False] * 2
    assert holdings.has_texts is texts
    found = holdings.faults(KEYS)
    assert verify(holdings, KEYS, has_texts=holdings.has_texts, found=found).verified

    copy = SqliteDatabase(tmp_path / "copy.db")
    for _ in copy_in(FileHoldings(open_source(path), texts=texts), database.locate(copy.url)):
        pass
    if not texts:
        assert not verified(copy.url).verified
        store = await DecisionStore.open(copy.url, keys=KEYS)
        assert await store.miss(Wanted(by="import", reason="not brought")) == 2
        assert await store.miss(Wanted(by="import", reason="not brought")) == 0
        await store.aclose()
    assert verified(copy.url).verified


async def test_a_file_that_denies_its_texts_is_found_out(tmp_path: Path) -> None:
    place = SqliteDatabase(tmp_path / "decisions.db")
    store = await DecisionStore.open(place.url, keys=KEYS)
    await fill(store, range(1))
    await store.aclose()
    path = tmp_path / "log.jsonl"
    with open_holdings(place.url) as holdings:
        sink = open_sink(path, "jsonl")
        for _ in write_archive(holdings, sink, KEYS, texts=True):
            pass
        sink.close()
    path.write_text(path.read_text().replace('"texts":true', '"texts":false'))

    holdings = FileHoldings(open_source(path))
    report = verify(holdings, KEYS, has_texts=holdings.has_texts, found=holdings.faults(KEYS))

    assert "the end of the file was changed" in report.faults[0].detail


async def test_a_text_of_no_decision_and_a_second_one_are_refused(
    log_database: LogDatabase,
) -> None:
    store = await DecisionStore.open(log_database.url, keys=KEYS)
    with pytest.raises(AuditUnavailable, match="no decision dec_000000 to give a text to"):
        await store.append_text(captured(0))
    with pytest.raises(AuditUnavailable, match="to give an addendum to"):
        await store.append_addendum(Shadow(decision_id="dec_9", added_at=1.0, result="equal"))
    await fill(store, range(1))
    with pytest.raises(AuditUnavailable, match="the log has a text of dec_000000 already"):
        await store.append_text(captured(0))
    await store.aclose()
    assert verified(log_database.url).verified
