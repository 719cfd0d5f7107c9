"""API keys: their secrets, their stores, and the commands that change them."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.access import store as stores
from gateway.access.building import open_store
from gateway.access.directory import Directory
from gateway.access.keys import Digester, StoredKey, handle_of, new_secret
from gateway.access.store import KeyStore
from gateway.cli import main
from gateway.errors import AuthenticationFailed, ConfigError
from gateway.grants import ALL_SCOPES, DEFAULT_SCOPES, Grant, Quota, Scope
from gateway.log import build_log
from tests.databases import PostgresqlServer

NOW = 1_800_000_000.0
DAY = 86400.0
SERVER_KEY = b"a server key for tests, long enough"


def template(caller: str = "ann", **fields: Any) -> StoredKey:
    return StoredKey(handle="", digest="", caller=caller, created_at=NOW, **fields)


@pytest.fixture(params=["file", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    if request.param == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql")
        return open_store(server.database().url)
    names = {"file": str(tmp_path / "keys.json"), "sqlite": f"sqlite:///{tmp_path}/keys.db"}
    return open_store(names[request.param])


def find(directory: Directory, secret: str) -> Grant:
    return asyncio.run(directory.find(f"Bearer {secret}"))


def directory(store: KeyStore, now: float = NOW, server_key: bytes = b"") -> Directory:
    made = Directory(store=store, digester=Digester(server_key), clock=lambda: now)
    made.refresh()
    return made


def test_a_created_key_is_known_by_what_is_kept_of_it(store: KeyStore) -> None:
    wanted = template(team="red", models=("a", "b"), quota=Quota(10, 1000, 2))
    key, secret = stores.create(store, Digester(), wanted)

    found = find(directory(store), secret)

    assert (found.caller.id, found.caller.team, found.caller.admin) == ("ann", "red", False)
    assert found.scopes == DEFAULT_SCOPES
    assert (found.models, found.quota) == (("a", "b"), Quota(10, 1000, 2))
    assert store.read() == (key,)


def test_a_key_says_what_it_is_and_holds_256_random_bits() -> None:
    made = {new_secret() for _ in range(100)}

    assert len({secret for _, secret in made}) == 100
    for handle, secret in made:
        assert secret.startswith(f"dgk_{handle}_")
        assert len(secret.removeprefix(f"dgk_{handle}_")) * 6 >= 256
        assert handle_of(secret) == handle


def test_the_secret_is_nowhere_in_the_store(tmp_path: Path) -> None:
    for place in (str(tmp_path / "keys.json"), f"sqlite:///{tmp_path}/keys.db"):
        _, secret = stores.create(open_store(place), Digester(SERVER_KEY), template())
        for path in tmp_path.iterdir():
            assert secret.rpartition("_")[2].encode() not in path.read_bytes()


def test_only_its_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "keys.json"
    stores.create(open_store(str(path)), Digester(), template())

    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700


@pytest.mark.parametrize(
    "spoil",
    [lambda s: s[:-1], lambda s: s[:-1] + "!", lambda s: s + "a"],
    ids=["shorter", "another character", "longer"],
)
def test_a_key_that_is_nearly_right_is_not_known(
    store: KeyStore, spoil: Callable[[str], str]
) -> None:
    _, secret = stores.create(store, Digester(), template())

    with pytest.raises(AuthenticationFailed) as caught:
        find(directory(store), spoil(secret))
    assert secret[:20] not in caught.value.message


def test_who_writes_the_store_cannot_make_a_key_without_the_server_key(store: KeyStore) -> None:
    _, forged = stores.create(store, Digester(), template(scopes=tuple(ALL_SCOPES)))
    _, other = stores.create(store, Digester(b"another server key"), template())
    _, secret = stores.create(store, Digester(SERVER_KEY), template())
    opened = directory(store, server_key=SERVER_KEY)

    assert find(opened, secret).caller.id == "ann"
    for wrong in (forged, other):
        with pytest.raises(AuthenticationFailed):
            find(opened, wrong)


def test_an_expired_key_is_refused_and_says_so(store: KeyStore) -> None:
    _, secret = stores.create(store, Digester(), template(expires_at=NOW + DAY))

    assert find(directory(store, NOW + DAY - 1), secret).caller.id == "ann"
    with pytest.raises(AuthenticationFailed, match="is expired"):
        find(directory(store, NOW + DAY), secret)


def test_two_keys_are_valid_while_one_replaces_the_other(store: KeyStore) -> None:
    old, secret = stores.create(store, Digester(), template(team="red"))
    new, fresh = stores.rotate(store, Digester(), old.handle, now=NOW + DAY, overlap_seconds=DAY)

    for at in (NOW + DAY, NOW + 2 * DAY - 1):
        assert find(directory(store, at), secret) == find(directory(store, at), fresh)
    with pytest.raises(AuthenticationFailed, match="is expired"):
        find(directory(store, NOW + 2 * DAY), secret)
    assert find(directory(store, NOW + 2 * DAY), fresh).caller.team == "red"
    assert new.handle != old.handle


def test_a_key_that_lived_a_while_is_replaced_by_one_that_lives_as_long(store: KeyStore) -> None:
    old, _ = stores.create(store, Digester(), template(expires_at=NOW + 90 * DAY))

    new, _ = stores.rotate(
        store, Digester(), old.handle, now=NOW + 89 * DAY, overlap_seconds=30 * DAY
    )

    assert new.expires_at == NOW + 179 * DAY
    assert [key.expires_at for key in store.read()] == [NOW + 90 * DAY, NOW + 179 * DAY]


def test_a_revoked_key_is_refused_as_soon_as_the_store_is_looked_at(store: KeyStore) -> None:
    key, secret = stores.create(store, Digester(), template())
    opened = directory(store)
    assert find(opened, secret).caller.id == "ann"

    stores.revoke(store, key.handle, now=NOW + 1)
    opened.refresh()

    with pytest.raises(AuthenticationFailed, match="is revoked"):
        find(opened, secret)
    with pytest.raises(ConfigError, match="is revoked"):
        stores.rotate(store, Digester(), key.handle, now=NOW + 2, overlap_seconds=0)


def test_all_keys_of_a_caller_are_revoked_at_once(store: KeyStore) -> None:
    for caller in ("ann", "ann", "bob"):
        stores.create(store, Digester(), template(caller))

    revoked = stores.revoke(store, "ann", now=NOW)

    assert [key.caller for key in revoked] == ["ann", "ann"]
    assert [key.state(NOW) for key in store.read()].count("valid") == 1
    assert stores.revoke(store, "ann", now=NOW) == ()


def test_what_is_not_there_is_an_error_and_changes_nothing(store: KeyStore) -> None:
    key, _ = stores.create(store, Digester(), template())

    with pytest.raises(ConfigError, match="no key 'carl'"):
        stores.revoke(store, "carl", now=NOW)
    with pytest.raises(ConfigError, match="no key 'ann'"):
        stores.rotate(store, Digester(), "ann", now=NOW, overlap_seconds=0)
    assert store.read() == (key,)


def test_two_who_change_the_store_at_once_lose_nothing(store: KeyStore) -> None:
    def add(number: int) -> None:
        for count in range(5):
            stores.create(store, Digester(), template(f"caller-{number}-{count}"))

    add(9)
    threads = [threading.Thread(target=add, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({key.caller for key in store.read()}) == 20


def test_the_version_differs_after_each_change(store: KeyStore) -> None:
    seen = []
    for caller in ("ann", "bob", "carl"):
        stores.create(store, Digester(), template(caller))
        seen += [store.version(), store.version()]

    assert len(set(seen)) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"keys": [{}]}', "\udcff"])
def test_a_file_that_holds_no_keys_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(ConfigError, match=r"keys\.json: the store of keys"):
        open_store(str(path)).read()


def test_a_database_that_does_not_answer_is_an_error_without_its_password() -> None:
    store = open_store("postgresql://ann:s3cret@127.0.0.1:1/keys?connect_timeout=1")

    with pytest.raises(ConfigError, match="does not answer") as caught:
        store.read()
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in store.name


async def test_a_store_that_fails_leaves_the_keys_as_they_were_and_is_told_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    _, secret = stores.create(open_store(str(path)), Digester(), template())
    opened = Directory(store=open_store(str(path)), log=build_log())
    opened.refresh()
    path.write_text("{")

    watching = asyncio.create_task(opened.watch(0.01))
    await asyncio.sleep(0.1)
    watching.cancel()

    assert (await opened.find(f"Bearer {secret}")).caller.id == "ann"
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["keys_not_read"]


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(main, ["keys", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_make_list_replace_and_revoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTGATE_KEY_SECRET", SERVER_KEY.decode())
    place = ["--store", str(tmp_path / "keys.json")]
    made = json.loads(
        run("create", "ann", "--scope", "metrics", "--expires-in", "90d", *place, "--json")
    )
    text = run("create", "bob", "--admin", "--tokens-per-minute", "500", *place)
    listed = json.loads(run("list", *place, "--json"))
    fresh = json.loads(run("rotate", made["handle"], "--overlap", "0", *place, "--json"))
    run("revoke", "bob", *place)
    after = json.loads(run("list", "--all", *place, "--json"))

    opened = directory(open_store(place[1]), 0.0, SERVER_KEY)
    assert find(opened, made["key"]).scopes == {Scope.METRICS}
    assert [key["caller"] for key in listed] == ["ann", "bob"]
    assert {"key", "digest"}.isdisjoint(listed[0])
    assert made["key"] not in run("list", "--all", *place)
    assert len(text.splitlines()[0]) == len(made["key"])
    assert {(key["handle"], key["state"]) for key in after} >= {
        (made["handle"], "expired"),
        (fresh["handle"], "valid"),
    }
    assert [key["state"] for key in after if key["caller"] == "bob"] == ["revoked"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "ann"], "there is no store of keys"),
        (["create", "not a name", "--store", "STORE"], "a name has letters"),
        (["create", "ann", "--expires-in", "soon", "--store", "STORE"], "no length of time"),
        (["create", "ann", "--scope", "all", "--store", "STORE"], "is not one of"),
        (["revoke", "ann", "--store", "STORE"], "there is no key 'ann'"),
        (["rotate", "ann", "--store", "STORE"], "there is no key 'ann'"),
        (["list", "--store", "nowhere://x"], "no driver for this database"),
    ],
)
def test_a_command_that_cannot_be_obeyed_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.delenv("DRAFTGATE_CONFIG", raising=False)
    given = [str(tmp_path / "k.json") if word == "STORE" else word for word in arguments]

    result = CliRunner().invoke(main, ["keys", *given])

    assert result.exit_code == 2
    assert message in result.output
