from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.audit.anchor import Anchor
from gateway.audit.keys import keyring
from gateway.audit.record import PolicyChange, TextFacts
from gateway.audit.retention import Limits
from gateway.audit.store import DecisionStore
from gateway.audit.texts import Captured, ciphertext_digest
from gateway.cli import main
from tests.databases import LogDatabase, SqliteDatabase
from tests.records import decision_record, outcome_record

SECRET = "s" * 64


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DRAFTGATE_CONFIG", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DRAFTGATE_AUDIT_KEY", SECRET)


def _fill(url: str, requests: int = 5, *, prune: bool = False, anchor: Path | None = None) -> None:
    change = PolicyChange(
        changed_at=1.0,
        policy="p",
        policy_hash="f" * 64,
        previous_hash=None,
        source="start",
        files={},
    )

    async def run() -> None:
        store = await DecisionStore.open(
            url,
            keys=keyring([("", SECRET.encode())]),
            anchor=None if anchor is None else Anchor(anchor),
        )
        await store.append_change(change)
        for number in range(requests):
            await store.append_decision(decision_record(number))
            await store.append_outcome(outcome_record(number, error="naïve \x1b[31m 한"))
        await store.append_decision(decision_record(900))
        if prune:
            await store.prune(Limits(size=9000))
        await store.aclose()

    asyncio.run(run())


def _run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, ["decisions", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def _rows(database: LogDatabase) -> Any:
    names = ("decisions", "outcomes", "policy_changes", "seals", "chain")
    found = {name: sorted(database.run(f"SELECT * FROM {name}"), key=repr) for name in names}
    return found, sorted(writer for (writer,) in database.run("SELECT writer FROM writers"))


def test_a_good_log_exits_with_0_and_a_changed_one_with_1_and_the_record(
    log_database: LogDatabase, tmp_path: Path
) -> None:
    url, anchor = log_database.url, tmp_path / "anchor.jsonl"
    _fill(url, anchor=anchor)
    good = _run("verify", "--url", url, "--anchor", anchor)
    assert good.exit_code == 0
    assert "Verified: every record is what was recorded." in good.stdout
    assert "6 decisions, 5 outcomes, 1 policy_changes, 2 seals in 1 chains" in good.stdout
    assert "anchor: 2 lines agree" in good.stdout

    log_database.run("UPDATE decisions SET rule = 'x' WHERE decision_id = 'dec_000002'")
    bad = _run("verify", "--url", url)
    assert bad.exit_code == 1
    assert "Not verified: 1 fault. The first bad record:" in bad.stdout
    assert "tampered, decisions dec_000002, chain " in bad.stdout
    report = json.loads(_run("verify", "--url", url, "--json").stdout)
    assert (report["verified"], report["faults"][0]["record"]) == (False, "dec_000002")


def test_an_unsigned_log_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    store = asyncio.run(_opened_and_closed(url))
    assert store.interrupted == 0
    monkeypatch.delenv("DRAFTGATE_AUDIT_KEY")
    result = _run("verify", "--url", url)
    assert (result.exit_code, "not_signed" in result.stdout) == (1, True)
    result = _run("verify", "--url", url, "--allow-unsigned")
    assert (result.exit_code, "Not signed" in result.stdout) == (0, True)


async def _opened_and_closed(url: str) -> DecisionStore:
    store = await DecisionStore.open(url)
    await store.aclose()
    return store


def test_keys_and_anchor_come_from_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    path = tmp_path / "gateway.yaml"
    path.write_text(
        f"audit:\n  url: {url}\n  anchor: anchor.jsonl\n"
        "  keys: [{id: new, env: NEW_KEY}, {id: old, env: OLD_KEY}]\n"
    )
    missing = _run("verify", "--config", path)
    assert missing.exit_code == 2
    assert "the environment has no NEW_KEY" in missing.output
    monkeypatch.setenv("NEW_KEY", "short")
    short = _run("verify", "--config", path)
    assert "the key 'new' has 5 characters, and needs 32" in short.output
    monkeypatch.setenv("NEW_KEY", "n" * 40)
    assert "there is no decision log" in _run("verify", "--config", path).output

    async def write() -> None:
        keys = keyring([("new", b"n" * 40)])
        store = await DecisionStore.open(url, keys=keys, anchor=Anchor(tmp_path / "anchor.jsonl"))
        await store.aclose()

    asyncio.run(write())
    good = _run("verify", "--config", path)
    assert good.exit_code == 0, good.output
    assert "signed: 2 with the key new" in good.stdout


def test_a_missing_anchor_is_an_error_and_no_empty_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    _fill(url)
    result = _run("verify", "--url", url, "--anchor", tmp_path / "nowhere")
    assert (result.exit_code, "cannot be read" in result.output) == (2, True)


def test_prune_drops_and_the_log_still_verifies(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    _fill(url)
    assert _run("prune", "--url", url).exit_code == 2
    result = _run("prune", "--url", url, "--max-mb", "0.005")
    assert result.exit_code == 0, result.output
    assert int(result.stdout.split()[0]) > 5
    verified = _run("verify", "--url", url)
    assert verified.exit_code == 0, verified.output
    assert "Retention dropped" in verified.stdout
    assert "0 records dropped." in _run("prune", "--url", url, "--days", "1").stdout


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
@pytest.mark.parametrize("prune", [False, True])
def test_an_export_verifies_by_itself_and_comes_back_as_it_was(
    log_database: LogDatabase, tmp_path: Path, format_: str, prune: bool
) -> None:
    _fill(log_database.url, prune=prune)
    out, copy = tmp_path / "log.out", SqliteDatabase(tmp_path / "copy.db")
    exported = _run("export", "--url", log_database.url, "--format", format_, "--out", out)
    assert exported.exit_code == 0, exported.output
    assert not (tmp_path / "log.out.part").exists()
    verified = _run("verify", "--file", out)
    assert verified.exit_code == 0, verified.output

    imported = _run("import", out, "--url", copy.url)
    assert imported.exit_code == 0, imported.output
    assert _rows(copy)[0] == _rows(log_database)[0]
    assert _run("verify", "--url", copy.url).exit_code == 0
    # The decision that was open is closed by the next start, and the log goes on.
    assert asyncio.run(_opened_and_closed(copy.url)).interrupted == 1
    assert "holds records already" in _run("import", out, "--url", copy.url).output


def test_a_parquet_file_whose_end_was_changed_is_not_whole(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    url, out = f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "log.parquet"
    _fill(url)
    assert _run("export", "--url", url, "--format", "parquet", "--out", out).exit_code == 0
    table = pq.read_table(out)
    metadata = dict(table.schema.metadata or {}) | {b"draftgate": b"no end"}
    pq.write_table(table.replace_schema_metadata(metadata), out)

    result = _run("verify", "--file", out)

    assert result.exit_code == 1, result.output
    assert "truncated" in result.output


def test_a_log_from_sqlite_goes_on_in_postgresql(log_database: LogDatabase, tmp_path: Path) -> None:
    _fill(f"sqlite:///{tmp_path / 'first.db'}")
    out = tmp_path / "log.jsonl"
    _run("export", "--url", f"sqlite:///{tmp_path / 'first.db'}", "--out", out)
    assert _run("import", out, "--url", log_database.url).exit_code == 0
    _fill_more(log_database.url)
    verified = _run("verify", "--url", log_database.url)
    assert verified.exit_code == 0, verified.output


def _fill_more(url: str) -> None:
    async def run() -> None:
        store = await DecisionStore.open(url, keys=keyring([("", SECRET.encode())]))
        await store.append_decision(decision_record(50))
        await store.append_outcome(outcome_record(50))
        await store.aclose()

    asyncio.run(run())


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    _fill(f"sqlite:///{tmp_path / 'x.db'}")
    out = tmp_path / "log.jsonl"
    _run("export", "--url", f"sqlite:///{tmp_path / 'x.db'}", "--out", out)
    return out


def _kinds(path: Path) -> list[str]:
    report = json.loads(_run("verify", "--file", path, "--json").stdout)
    return [fault["kind"] for fault in report["faults"]]


def test_what_is_done_to_a_file_is_told_apart(exported: Path) -> None:
    lines = exported.read_text().splitlines(keepends=True)
    assert _kinds(exported) == []

    def changed(text: list[str]) -> list[str]:
        exported.write_text("".join(text))
        return _kinds(exported)

    assert changed(lines[:-1]) == ["truncated"]
    assert changed(lines[:-3])[0] == "truncated"
    assert changed([*lines[:4], *lines[5:]])[0] == "removed"
    assert changed([*lines[:4], lines[5], lines[4], *lines[6:]]) == ["reordered"]
    assert changed([*lines[:5], lines[4], *lines[5:]])[0] == "inserted"
    assert changed([*lines[:4], "{broken\n", *lines[5:]])[0] == "tampered"
    assert changed([line.replace('"ada\\"', '"eve\\"') for line in lines])[0] == "tampered"
    assert changed([]) == ["truncated"]


def test_a_file_that_does_not_verify_is_not_imported(exported: Path, tmp_path: Path) -> None:
    exported.write_text(exported.read_text().replace('"ada\\"', '"eve\\"'))
    url = f"sqlite:///{tmp_path / 'y.db'}"
    refused = _run("import", exported, "--url", url)
    assert (refused.exit_code, "nothing was imported" in refused.output) == (1, True)
    assert not (tmp_path / "y.db").exists()
    assert _run("import", exported, "--url", url, "--unverified").exit_code == 0
    assert _run("verify", "--url", url).exit_code == 1


def test_an_import_that_breaks_off_leaves_no_half_of_a_log(exported: Path, tmp_path: Path) -> None:
    lines = exported.read_text().splitlines(keepends=True)
    exported.write_text("".join([*lines, lines[3]]))
    url = f"sqlite:///{tmp_path / 'y.db'}"
    assert _run("import", exported, "--url", url, "--unverified").exit_code == 2
    assert SqliteDatabase(tmp_path / "y.db").run("SELECT name FROM sqlite_master") == []


def test_parquet_without_pyarrow_says_how_to_get_it(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "gateway.audit.parquet", raising=False)
    out = tmp_path / "x.parquet"
    url = f"sqlite:///{tmp_path / 'x.db'}"
    result = _run("export", "--url", url, "--format", "parquet", "--out", out)
    assert result.exit_code == 2
    assert "pip install 'draftgate[parquet]'" in result.output
    assert not out.exists()


@pytest.mark.parametrize("texts", [False, True])
def test_texts_leave_and_come_back_only_where_that_is_asked_for(
    tmp_path: Path, texts: bool
) -> None:
    source, copy = (SqliteDatabase(tmp_path / f"{name}.db") for name in ("source", "copy"))
    facts = TextFacts(
        decision_id="dec_000000",
        kind="prompt",
        captured_at=1.0,
        digest=ciphertext_digest("AAAA"),
    )

    async def fill() -> None:
        store = await DecisionStore.open(source.url, keys=keyring([("", SECRET.encode())]))
        await store.append_decision(decision_record(0))
        await store.append_text(Captured(facts, "AAAA"))
        await store.aclose()

    asyncio.run(fill())
    path, flags = tmp_path / "log.jsonl", ["--texts"] if texts else []

    assert _run("export", "--url", source.url, "--out", path, "--texts").exit_code == 0
    assert _run("verify", "--file", path).exit_code == 0
    imported = _run("import", path, "--url", copy.url, *flags)

    assert imported.exit_code == 0, imported.output
    assert copy.run("SELECT ciphertext FROM texts") == [("AAAA" if texts else None,)]
    erasures = copy.run("SELECT document FROM seals WHERE kind = 'erasure'")
    assert len(erasures) == (0 if texts else 1)
    verified = _run("verify", "--url", copy.url)
    assert verified.exit_code == 0, verified.output
    bare = tmp_path / "bare.jsonl"
    assert _run("export", "--url", source.url, "--out", bare).exit_code == 0
    assert "AAAA" not in bare.read_text()
    assert _run("verify", "--file", bare).exit_code == 0
