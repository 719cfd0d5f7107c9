from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.audit.digests import Digest, Digests
from gateway.audit.keys import Key, Keyring
from gateway.cli.decisions import decisions
from gateway.credentials import SIGNING_VARIABLE

OLD, NEW = Key("old", b"o" * 32), Key("new", b"n" * 32)
BODY = b'{"model": "m", "prompt": "a guess"}'


def test_without_a_key_the_digest_is_plain_and_says_so() -> None:
    assert Digests().of(BODY) == Digest(hashlib.sha256(BODY).hexdigest(), "")


def test_with_a_key_nobody_without_it_can_check_a_guess() -> None:
    digest = Digests(Keyring([NEW])).of(BODY)
    assert digest.key_id == "new"
    # Neither the plain digest nor what the key itself signs: a code of the chain is no digest.
    assert digest.value not in (hashlib.sha256(BODY).hexdigest(), NEW.sign(BODY))
    assert digest == Digests(Keyring([NEW])).of(BODY)
    assert digest.value != Digests(Keyring([Key("new", b"x" * 32)])).of(BODY).value


def test_after_a_rotation_older_digests_are_still_found() -> None:
    before = Digests(Keyring([OLD])).of(BODY)
    rotated = Digests(Keyring([NEW, OLD]))
    assert rotated.of(BODY).key_id == "new"
    found = list(rotated.candidates(BODY))
    assert [digest.key_id for digest in found] == ["new", "old", ""]
    assert before in found
    assert Digests().of(BODY) in found


def _run(*arguments: str, body: bytes | None = None) -> str:
    result = CliRunner().invoke(decisions, ["digest", *arguments], input=body)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_prints_what_the_gateway_would_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SIGNING_VARIABLE, raising=False)
    file = tmp_path / "body.json"
    file.write_bytes(BODY)
    plain = hashlib.sha256(BODY).hexdigest()
    assert _run(str(file)) == f"{plain}  (no key)\n"

    monkeypatch.setenv("OLD_SECRET", "o" * 32)
    monkeypatch.setenv("NEW_SECRET", "n" * 32)
    config = tmp_path / "draftgate.yaml"
    config.write_text(
        "audit: {keys: [{id: new, env: NEW_SECRET}, {id: old, env: OLD_SECRET}]}", encoding="utf-8"
    )
    found = json.loads(_run("-", "--json", "--config", str(config), body=BODY))
    wanted = Digests(Keyring([NEW, OLD])).candidates(BODY)
    assert [(each["digest"], each["digest_key"]) for each in found] == list(wanted)


def test_a_key_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEW_SECRET", raising=False)
    config = tmp_path / "draftgate.yaml"
    config.write_text("audit: {keys: [{id: new, env: NEW_SECRET}]}", encoding="utf-8")
    result = CliRunner().invoke(decisions, ["digest", "-", "--config", str(config)], input=BODY)
    assert result.exit_code == 2
    assert "NEW_SECRET" in result.output
