from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gateway.audit.record import PolicyChange
from gateway.errors import (
    AuditUnavailable,
    ConfigError,
    Conflict,
    NotFound,
    PreconditionFailed,
    Problem,
)
from gateway.keeper import PolicyKeeper
from gateway.log import build_log
from gateway.routing import files
from gateway.routing.active import ActivePolicy
from gateway.routing.policy import Policy
from gateway.routing.vetting import Vetting
from gateway.telemetry import Telemetry
from gateway.types import ChatRequest, Signals


def text(name: str, mode: str = "standard") -> str:
    return f"version: 1\nname: {name}\ndefault: {{mode: {mode}}}\n"


def cases(mode: str) -> str:
    return f"cases:\n  - {{name: plain, signals: {{}}, expect: {{mode: {mode}, rule: default}}}}\n"


class Changes:
    """A log of changes in a list; fails when told to."""

    def __init__(self) -> None:
        self.records: list[PolicyChange] = []
        self.fails = False

    async def append_change(self, record: PolicyChange) -> None:
        if self.fails:
            raise AuditUnavailable("the disk is full")
        self.records.append(record)

    async def changes(self, *, limit: int = 100) -> Sequence[PolicyChange]:
        return self.records[::-1][:limit]

    async def version(self, policy_hash: str) -> PolicyChange | None:
        return next((r for r in self.records[::-1] if r.policy_hash == policy_hash), None)


class House:
    """A policy file and its keeper."""

    def __init__(self, folder: Path, contents: Mapping[str, str] | None = None) -> None:
        self.path = folder / "house.yaml"
        if contents is None:
            self.path.write_text(text("one"))
        else:  # a folder of files
            self.path = folder
            for name, content in contents.items():
                (folder / name).write_text(content)
        self.unknown = ""
        self.changes = Changes()
        self.telemetry = Telemetry()
        vetting = self.vetting = Vetting(backends=(), classify=_never)
        self.active = ActivePolicy(vetting.load(self.path))
        self.keeper = PolicyKeeper(
            self.path,
            self.active,
            snapshot=files.read(self.path),
            vetting=vetting,
            obeyable=self.obey,
            changes=self.changes,
            versions=self.changes,
            telemetry=self.telemetry,
            log=build_log("critical"),
            clock=lambda: 7.0,
        )

    def obey(self, policy: Policy) -> None:
        if policy.default.draft is not None and policy.default.draft.source == self.unknown:
            raise ConfigError([Problem("there is no draft model", path=policy.path)])

    @property
    def name(self) -> str:
        return self.active.current.name

    @property
    def hash(self) -> str:
        return self.active.current.hash

    def failed(self) -> bool:
        return b"draftgate_policy_reload_failed 1.0" in self.telemetry.render()


def _never(request: ChatRequest) -> Signals:
    raise AssertionError(request)


def on_disk(path: Path) -> dict[str, str]:
    return files.texts(files.read(path).contents)


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


@pytest.fixture
async def house(tmp_path: Path) -> House:
    house = House(tmp_path)
    await house.keeper.start()
    return house


async def test_the_start_is_on_record_once(house: House) -> None:
    await house.keeper.start()
    (record,) = house.changes.records
    assert (record.source, record.policy, record.previous_hash) == ("start", "one", None)
    assert record.policy_hash == digest(text("one"))
    assert record.files == {"house.yaml": text("one")}


async def test_an_edited_file_comes_into_force_and_on_record(house: House) -> None:
    before = house.active.current
    house.path.write_text(text("two"))

    assert await house.keeper.reload("file")

    assert house.name == "two"
    assert before.name == "one"  # what a request holds stays what it was
    record = house.changes.records[-1]
    assert (record.source, record.previous_hash) == ("file", before.hash)
    assert (record.changed_at, record.by) == (7.0, "")


@pytest.mark.parametrize(
    ("policy", "tests", "says"),
    [
        ("version: 1\nname: two\nrulez: []\n", None, "house.yaml:3:1: unknown"),
        ("version: 2\n", None, "version 2 is not known"),
        ("", None, "house.yaml"),
        (text("two", "speculative"), cases("standard"), "the case 'plain' fails: mode"),
        (text("two"), "cases: []\n", "house_test.yaml"),
        (None, None, "no such file"),
    ],
)
async def test_a_file_that_is_not_fit_keeps_the_last_good_one_and_says_why(
    house: House, policy: str | None, tests: str | None, says: str
) -> None:
    house.path.unlink()
    if policy is not None:
        house.path.write_text(policy)
    if tests is not None:
        files.beside(house.path, "_test").write_text(tests)

    assert not await house.keeper.reload("file")

    assert house.name == "one"
    assert house.failed()
    assert house.active.warning is not None
    assert says in house.active.warning
    assert "Still in force: one" in house.active.warning
    assert len(house.changes.records) == 1

    house.path.write_text(text("one"))
    files.beside(house.path, "_test").unlink(missing_ok=True)
    assert await house.keeper.reload("file")
    assert house.active.warning is None
    assert not house.failed()


async def test_a_statement_that_is_not_true_keeps_the_last_good_one(house: House) -> None:
    files.beside(house.path, "_proof").write_text(
        "statements:\n  - {name: nothing is fast, never: {mode: [speculative, hybrid]}}\n"
    )
    assert await house.keeper.reload("file")
    house.path.write_text(text("two", "speculative"))

    assert not await house.keeper.reload("file")

    assert house.name == "one"
    assert "house_proof.yaml: the statement 'nothing is fast' is not true" in str(
        house.active.warning
    )


async def test_what_no_backend_can_obey_never_comes_into_force(house: House) -> None:
    house.unknown = "suffix"
    new = text("two", "speculative")
    for attempt in (
        house.keeper.check({"policy": new}),
        house.keeper.apply({"policy": new}, replaces=house.hash, by="ann"),
    ):
        with pytest.raises(ConfigError, match="no draft model"):
            await attempt
    house.path.write_text(new)
    assert not await house.keeper.reload("file")
    assert house.name == "one"
    assert "no draft model" in str(house.active.warning)


async def test_what_cannot_be_recorded_does_not_come_into_force(house: House) -> None:
    house.changes.fails = True
    house.path.write_text(text("two"))

    assert not await house.keeper.reload("file")
    assert house.name == "one"
    assert "the disk is full" in str(house.active.warning)

    house.path.write_text(text("one"))
    with pytest.raises(AuditUnavailable):
        await house.keeper.apply({"policy": text("three")}, replaces=house.hash, by="ann")
    assert house.path.read_text() == text("one")
    assert house.name == "one"


async def test_watching_sees_a_rename_and_waits_until_it_has_settled(house: House) -> None:
    watching = asyncio.create_task(house.keeper.watch(0.01))
    try:
        new = house.path.with_name("new")
        new.write_text(text("two"))
        new.rename(house.path)
        await _until(lambda: house.name == "two")
        house.path.write_text("half a fi")
        await _until(lambda: house.active.warning is not None)
        house.path.write_text(text("three"))
        await _until(lambda: house.name == "three")
        assert house.active.warning is None
        assert [r.policy for r in house.changes.records] == ["one", "two", "three"]
    finally:
        watching.cancel()


async def test_no_watching_ends_at_once(house: House) -> None:
    await asyncio.wait_for(house.keeper.watch(0), 1)


async def test_applying_writes_the_files_records_and_swaps(house: House) -> None:
    texts = {"policy": text("two"), "tests": cases("standard")}
    policy = await house.keeper.apply(texts, replaces=house.hash, by="ann")

    assert policy is house.active.current
    assert policy.path == str(house.path)
    assert on_disk(house.path) == {
        "house.yaml": text("two"),
        "house_test.yaml": cases("standard"),
    }
    record = house.changes.records[-1]
    assert (record.source, record.by, record.policy) == ("api", "ann", "two")
    assert record.files == on_disk(house.path)


async def test_applying_keeps_tests_that_are_not_given_and_obeys_them(house: House) -> None:
    files.beside(house.path, "_test").write_text(cases("standard"))
    assert await house.keeper.reload("file")
    with pytest.raises(ConfigError, match=r"house_test\.yaml: the case 'plain' fails") as caught:
        await house.keeper.apply(
            {"policy": text("two", "speculative")}, replaces=house.hash, by="ann"
        )
    assert str(house.path.parent) in str(caught.value)
    assert house.path.read_text() == text("one")

    await house.keeper.apply(
        {"policy": text("two", "speculative"), "tests": ""}, replaces=house.hash, by="ann"
    )
    assert not files.beside(house.path, "_test").exists()


async def test_applying_to_what_is_not_in_force_any_more_is_refused(house: House) -> None:
    for replaces in ("", "0" * 64, house.hash[:3]):
        with pytest.raises(PreconditionFailed, match=house.active.current.version):
            await house.keeper.apply({"policy": text("two")}, replaces=replaces, by="ann")
    assert house.path.read_text() == text("one")


async def test_of_two_at_once_one_wins(house: House) -> None:
    results = await asyncio.gather(
        *(
            house.keeper.apply({"policy": text(name)}, replaces=house.hash, by=name)
            for name in ("two", "three")
        ),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["Policy", "PreconditionFailed"]
    assert house.path.read_text() == text(house.name)
    assert len(house.changes.records) == 2


async def test_an_edit_that_is_not_in_force_is_never_written_over(house: House) -> None:
    house.path.write_text("somebody's work")
    with pytest.raises(Conflict, match="holds an edit"):
        await house.keeper.apply({"policy": text("two")}, replaces=house.hash, by="ann")
    assert house.path.read_text() == "somebody's work"


async def test_a_file_that_cannot_be_written_is_a_conflict(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = files.write

    def only_elsewhere(path: Path, texts: dict[str, bytes]) -> None:
        if path == house.path:
            raise OSError(30, "Read-only file system")
        write(path, texts)

    monkeypatch.setattr(files, "write", only_elsewhere)
    with pytest.raises(Conflict, match="Read-only file system"):
        await house.keeper.apply({"policy": text("two")}, replaces=house.hash, by="ann")
    assert house.name == "one"
    assert len(house.changes.records) == 1


async def test_rolling_back_brings_policy_and_tests_back(house: House) -> None:
    first = house.hash
    await house.keeper.apply(
        {"policy": text("two", "speculative"), "tests": cases("speculative")},
        replaces=house.hash,
        by="ann",
    )
    policy = await house.keeper.rollback(first, replaces=house.hash, by="bob")

    assert policy.hash == first == house.hash
    assert on_disk(house.path) == {"house.yaml": text("one")}
    record = house.changes.records[-1]
    assert (record.source, record.by) == ("rollback", "bob")


async def test_rolling_back_to_what_never_was_is_refused(house: House) -> None:
    with pytest.raises(NotFound):
        await house.keeper.rollback("0" * 64, replaces=house.hash, by="bob")


async def test_checking_changes_nothing(house: House) -> None:
    policy = await house.keeper.check({"policy": text("two")})
    assert policy.hash == digest(text("two"))
    assert house.name == "one"
    assert house.path.read_text() == text("one")
    with pytest.raises(ConfigError):
        await house.keeper.check({"policy": "version: 1\n"})


SET = {
    "set.yaml": "version: 1\nname: acme\npolicies: [base.yaml]\ntighten: [red.yaml]\n",
    "base.yaml": text("base"),
    "red.yaml": "version: 1\nname: red\nfor: {team: {is: red}}\nrules: [{id: r, ban: [hybrid]}]\n",
    "set_test.yaml": cases("standard"),
}


@pytest.mark.parametrize("named", [".", "set.yaml"])
async def test_a_folder_is_watched_as_a_whole_and_changed_only_there(
    tmp_path: Path, named: str
) -> None:
    house = House(tmp_path, SET)
    house.keeper._path = tmp_path / named
    await house.keeper.start()
    assert house.changes.records[-1].files == SET

    seen = files.fingerprint(tmp_path / named)
    (tmp_path / "red.yaml").write_text(SET["red.yaml"].replace("[hybrid]", "[speculative]"))
    assert files.fingerprint(tmp_path / named) != seen
    before = house.hash
    assert await house.keeper.reload("file")
    assert house.hash != before
    assert house.active.current.layers[0].bans[0][1].bans == ("speculative",)

    (tmp_path / "base.yaml").write_text(text("base", "speculative"))  # its tests say standard
    assert not await house.keeper.reload("file")
    assert "the case 'plain' fails" in (house.active.warning or "")
    with pytest.raises(Conflict, match="a folder of files"):
        await house.keeper.apply({"policy": text("x")}, replaces=house.hash, by="ann")


async def _until(holds: object, seconds: float = 5.0) -> None:
    assert callable(holds)
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - the file system has no event to wait for
            await asyncio.sleep(0.005)


async def test_an_edit_made_while_the_gateway_starts_is_found(house: House) -> None:
    house.path.write_text(text("two"))  # after it was read, before the keeper starts
    late = Changes()
    house.keeper._changes = house.keeper._versions = late
    await house.keeper.start()
    assert late.records[0].files == {"house.yaml": text("one")}
    await _watched(house, lambda: house.name == "two")


async def test_a_reload_never_mixes_two_generations_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path, SET)
    vet = house.vetting.vet

    def slow(path: Path) -> Policy:
        policy = vet(path)
        (tmp_path / "base.yaml").write_text(text("base") + f"# {policy.hash}\n")
        return policy

    monkeypatch.setattr(house.vetting, "vet", slow)
    before = house.hash
    assert not await house.keeper.reload("signal")
    assert house.hash == before
    assert "changed while they were read" in str(house.active.warning)


async def test_an_edit_made_while_a_policy_is_applied_is_kept_and_vetted(house: House) -> None:
    append = house.changes.append_change
    edited = text("evil", "nonsense")

    async def edit(record: PolicyChange) -> None:
        await append(record)
        house.path.write_text(edited)

    house.changes.append_change = edit  # type: ignore[method-assign]
    await house.keeper.apply({"policy": text("two")}, replaces=house.hash, by="ann")
    assert house.name == house.changes.records[-1].policy == "two"
    assert house.path.read_text() == edited
    await _watched(house, lambda: "nonsense" in str(house.active.warning))
    assert house.name == "two"


async def test_an_edit_is_kept_when_applying_fails(house: House) -> None:
    async def edit(_: PolicyChange) -> None:
        house.path.write_text("somebody's work")
        raise AuditUnavailable("the disk is full")

    house.changes.append_change = edit  # type: ignore[method-assign]
    with pytest.raises(AuditUnavailable):
        await house.keeper.apply({"policy": text("two")}, replaces=house.hash, by="ann")
    assert house.path.read_text() == "somebody's work"


async def test_tests_that_are_removed_are_on_record(house: House) -> None:
    beside = files.beside(house.path, "_test")
    beside.write_text(cases("standard"))
    assert await house.keeper.reload("file")
    await house.keeper.apply({"policy": text("one"), "tests": ""}, replaces=house.hash, by="eve")
    added, removed = house.changes.records[1:]
    assert sorted(added.files) == ["house.yaml", "house_test.yaml"]
    assert (removed.by, sorted(removed.files)) == ("eve", ["house.yaml"])


async def test_an_edit_of_the_tests_alone_is_never_written_over(house: House) -> None:
    beside = files.beside(house.path, "_test")
    beside.write_bytes(b"# \xe9\n")
    with pytest.raises(Conflict, match=r"house_test\.yaml holds an edit"):
        await house.keeper.apply(
            {"policy": text("two"), "tests": cases("standard")}, replaces=house.hash, by="ann"
        )
    assert beside.read_bytes() == b"# \xe9\n"


async def test_what_could_not_be_recorded_is_tried_again(house: House) -> None:
    house.changes.fails = True
    house.path.write_text(text("two"))
    await _watched(house, lambda: "disk is full" in str(house.active.warning))
    house.changes.fails = False
    await _watched(house, lambda: house.name == "two")


async def test_the_watching_outlives_what_it_cannot_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Path) -> str:
        raise ValueError("no such character")

    with monkeypatch.context() as patch:
        patch.setattr(files, "fingerprint", broken)
        assert not await house.keeper.reload("signal")
        watching = asyncio.create_task(house.keeper.watch(0.005))
        house.active.warning = None
        await _until(lambda: "no such character" in str(house.active.warning))
    house.path.write_text(text("two"))
    await _until(lambda: house.name == "two")
    watching.cancel()


async def test_a_folder_of_files_is_refused_with_one_message(tmp_path: Path) -> None:
    house = House(tmp_path, SET)
    await house.keeper.start()
    for attempt in (
        house.keeper.read(text("x")),
        house.keeper.check({"policy": text("x")}),
        house.keeper.apply({"policy": text("x")}, replaces="", by="ann"),
        house.keeper.rollback(house.hash, replaces=house.hash, by="ann"),
    ):
        with pytest.raises(Conflict, match="a folder of files: change them there"):
            await attempt


async def _watched(house: House, holds: object) -> None:
    watching = asyncio.create_task(house.keeper.watch(0.005))
    try:
        await _until(holds)
    finally:
        watching.cancel()
