"""Captured text over HTTP: kept where a rule says so, shown to administrators, erased; shadow runs."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.audit.query import Entry
from gateway.cli import main
from gateway.config import AuthConfig, BackendConfig, GatewayConfig, KeyConfig, TextConfig
from gateway.errors import ConfigError
from gateway.runtime import running
from tests.live import LiveServer

ADMIN, ANN = "sk-admin", "sk-ann"
AUTH = AuthConfig(
    tuple(
        KeyConfig(name, hashlib.sha256(key.encode()).hexdigest(), admin=key == ADMIN)
        for name, key in (("ada", ADMIN), ("ann", ANN))
    )
)
POLICY = """\
version: 1
name: tests
rules:
  - {id: private, when: {keyword: [private]}, limit: {capture: none}}
  - id: kept
    when: {keyword: [function]}
    decide: {mode: speculative, capture: text, shadow_rate: 1}
  - {id: refused, when: {keyword: [forbidden]}, deny: Not here.}
"""


@pytest.fixture(scope="module", autouse=True)
def keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTGATE_TEXT_KEY", "t" * 64)
        patch.setenv("DRAFTGATE_AUDIT_KEY", "s" * 64)
        yield


def configured(config: GatewayConfig, **text: Any) -> GatewayConfig:
    audit = msgspec.structs.replace(config.audit, text=TextConfig(**text))
    return msgspec.structs.replace(config, audit=audit)


@pytest.fixture(scope="module")
def live(
    make_config: Callable[..., GatewayConfig], launch: type[LiveServer], tiny_model: Path
) -> Iterator[LiveServer]:
    options = {"model": str(tiny_model), "device": "cpu", "dtype": "float32", "threads": 1}
    options |= {"served_name": "tiny", "cost_model": "off", "probe": "off", "max_length": 200}
    config = configured(make_config(policy=POLICY, auth=AUTH))
    backends = {"local": BackendConfig("local", options)}
    with launch(msgspec.structs.replace(config, backends=backends)) as live:
        yield live


def ask(live: LiveServer, text: str = "a function", **fields: Any) -> str:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 20}
    # With some seeds the answer ends at once, and there is no text of it to keep.
    body["seed"] = 5
    response = live.post({**body, **fields}, authorization=f"Bearer {ANN}")
    return str(response.headers["x-draftgate-decision-id"])


def show(live: LiveServer, decision_id: str, query: str = "", key: str = ADMIN) -> Any:
    return live.get(f"/v1/decisions/{decision_id}{query}", authorization=f"Bearer {key}")


def erase(
    live: LiveServer, decision_id: str, query: str = "?reason=asked", key: str = ADMIN
) -> Any:
    path = f"{live.url}/v1/decisions/{decision_id}/text{query}"
    return live._client.delete(path, headers={"authorization": f"Bearer {key}"})


def until(live: LiveServer, decision_id: str, is_there: Callable[[Entry], object]) -> Entry:
    for _ in range(400):
        entry = live.entry(decision_id)
        if is_there(entry):
            return entry
        time.sleep(0.02)
    raise AssertionError(entry)


def kept(live: LiveServer, decision_id: str) -> Entry:
    return until(live, decision_id, lambda entry: len(entry.texts) == 2)


def test_what_a_rule_keeps_is_shown_to_administrators_and_masked(live: LiveServer) -> None:
    decision_id = ask(live, "a function for ann@example.com", seed=5)
    kept(live, decision_id)

    body = show(live, decision_id, "?text=true").json()

    prompt = json.loads(body["text"]["prompt"])
    assert prompt["messages"][0]["content"] == "a function for [email]"
    assert body["texts"][0]["masked"] == {"email": 1}
    assert len(json.loads(body["text"]["answer"])) == 1
    assert [facts["kind"] for facts in body["texts"]] == ["prompt", "answer"]
    seen = show(live, decision_id).json()
    assert seen["text"] is None
    assert [(access["by"], access["through"]) for access in seen["accesses"]] == [("ada", "api")]


def test_nobody_else_sees_a_text_or_erases_one(live: LiveServer) -> None:
    decision_id = ask(live)
    kept(live, decision_id)

    for response in (
        show(live, decision_id, "?text=true", ANN),
        erase(live, decision_id, key=ANN),
    ):
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "permission_denied"
    own = show(live, decision_id, key=ANN).json()
    assert (own["text"], own["accesses"], own["erased"]) == (None, [], False)
    assert show(live, decision_id, "?text=perhaps").status_code == 400


def test_an_erased_text_is_gone_and_the_entry_says_so(live: LiveServer) -> None:
    decision_id = ask(live)
    kept(live, decision_id)

    assert erase(live, decision_id, "").json()["error"]["param"] == "reason"
    first = erase(live, decision_id)

    assert (first.status_code, first.json()["erased"]) == (200, True)
    assert first.json()["object"] == "decision.erasure"
    assert erase(live, decision_id).json()["erased"] is False
    body = show(live, decision_id, "?text=true").json()
    assert (body["erased"], body["text"], body["accesses"]) == (True, {}, [])
    assert erase(live, "dec_none").status_code == 404


@pytest.mark.parametrize("text", ["nothing of the kind", "a private function"])
def test_what_no_rule_keeps_or_a_limit_forbids_is_not_kept(live: LiveServer, text: str) -> None:
    decision_id = ask(live, text)
    later = ask(live)
    kept(live, later)

    assert live.entry(decision_id).texts == ()


def test_a_prompt_that_cannot_be_masked_is_dropped_and_its_record_says_so(
    live: LiveServer,
) -> None:
    body = {"model": "tiny", "prompt": list(b"a function"), "max_tokens": 3}
    answer = live.post(body, "/v1/completions", authorization=f"Bearer {ANN}")
    assert live.entry(answer.headers["x-draftgate-decision-id"]).texts == ()  # no rule saw a word


@pytest.mark.parametrize("fields", [{}, {"n": 3, "temperature": 1.5}, {"temperature": 0}])
def test_a_share_is_decoded_again_and_the_log_has_the_result(
    live: LiveServer, fields: dict[str, Any]
) -> None:
    decision_id = ask(live, **fields)

    entry = until(live, decision_id, lambda entry: entry.shadow is not None)

    assert entry.outcome is not None
    run = entry.outcome.execution
    assert entry.shadow is not None
    assert entry.shadow.result == "equal"
    assert entry.shadow.num_tokens == sum(run.output_lengths) == run.usage.completion_tokens
    assert entry.shadow.fingerprint == run.fingerprint
    assert len(run.output_digests) == fields.get("n", 1)
    assert 'draftgate_shadow_runs_total{result="equal"}' in live.get("/metrics").text
    assert show(live, decision_id).json()["shadow"]["result"] == "equal"


def test_a_standard_answer_has_digests_and_no_shadow(live: LiveServer) -> None:
    decision_id = ask(live, "nothing of the kind")
    until(live, ask(live), lambda entry: entry.shadow is not None)

    entry = live.entry(decision_id)
    assert entry.shadow is None
    assert entry.outcome is not None
    assert len(entry.outcome.execution.output_digests) == 1


@pytest.fixture
def command(live: LiveServer, tmp_path: Path) -> Callable[..., Result]:
    """Runs `draftgate decisions …` with the server's model and log."""
    path = tmp_path / "draftgate.yaml"
    options = dict(live.config.backends["local"].options)
    backends = {"local": {"type": "local", "options": options}}
    path.write_text(yaml.safe_dump({"backends": backends, "audit": {"url": live.config.audit.url}}))

    def run(*arguments: str) -> Result:
        environment = {"DRAFTGATE_CONFIG": str(path)}
        return CliRunner().invoke(main, ["decisions", *arguments], env=environment)

    return run


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 11},
        {"n": 2, "temperature": 1.3},
        {"response_format": {"type": "json_object"}, "max_tokens": 30},
        {"stop": ["e"], "temperature": 0},
    ],
)
def test_an_answer_is_proved_from_its_captured_text(
    live: LiveServer, command: Callable[..., Result], fields: dict[str, Any]
) -> None:
    decision_id = ask(live, **fields)
    kept(live, decision_id)

    result = command("replay", decision_id, "--json", "--by", "eve")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["equal"], found["same_model"], found["decided"]) == (True, True, "speculative")
    assert found["answers"] == [True] * fields.get("n", 1)
    assert (found["difference"], found["notes"]) == (None, [])
    (access,) = live.entry(decision_id).accesses
    assert (access.by, access.through) == ("eve", "command")
    assert "Equal: the" in command("replay", decision_id).output


def test_the_best_of_several_is_proved_from_the_body(
    live: LiveServer, command: Callable[..., Result], tmp_path: Path
) -> None:
    raw = json.dumps(
        {
            "model": "tiny",
            "prompt": "a function",
            "best_of": 3,
            "n": 2,
            "max_tokens": 40,
            "temperature": 0.1,
        }
    ).encode()
    answer = live.post(raw, "/v1/completions", authorization=f"Bearer {ANN}")
    decision_id = answer.headers["x-draftgate-decision-id"]
    live.entry(decision_id)
    right, wrong, prompt = tmp_path / "right", tmp_path / "wrong", tmp_path / "prompt"
    right.write_bytes(raw)
    wrong.write_bytes(raw + b" ")
    prompt.write_text("a function")

    assert command("replay", decision_id, "--body", str(right)).exit_code == 0
    assert command("replay", decision_id, "--prompt-file", str(prompt)).exit_code == 0
    refused = command("replay", decision_id, "--body", str(wrong))
    assert refused.exit_code == 2
    assert "is not the body of this request, byte for byte" in refused.output
    prompt.write_text("zebra")
    other = command("replay", decision_id, "--prompt-file", str(prompt), "--json")
    assert other.exit_code == 1
    found = json.loads(other.stdout)
    assert (found["equal"], found["difference"]) == (False, None)
    assert "the prompt has 5 tokens here, and had 10" in found["notes"]


def test_a_masked_or_missing_text_asks_for_the_body(
    live: LiveServer, command: Callable[..., Result]
) -> None:
    masked, absent = ask(live, "a function for ann@example.com"), ask(live, "nothing")
    kept(live, masked)

    for decision_id, said in (
        (masked, "was masked or cut"),
        (absent, "has no text of this request"),
    ):
        result = command("replay", decision_id)
        assert (result.exit_code, said in result.output) == (2, True), result.output


def test_the_commands_show_and_erase(live: LiveServer, command: Callable[..., Result]) -> None:
    decision_id = ask(live, "a function \x1b[31m", seed=3)
    kept(live, decision_id)
    until(live, decision_id, lambda entry: entry.shadow is not None)

    shown = command("show", decision_id, "--text", "--by", "eve").output
    assert "a function" in shown
    assert "\x1b[31m" not in shown
    assert "shadow run" in shown
    document = json.loads(command("show", decision_id, "--json", "--text").stdout)
    assert json.loads(document["text"]["prompt"])["seed"] == 3
    assert [access["by"] for access in document["accesses"]] == ["eve"]
    assert command("erase", "--reason", "x").exit_code == 2
    assert command("erase", "--id", decision_id).exit_code == 2
    erased = command("erase", "--id", decision_id, "--reason", "asked", "--json")
    assert json.loads(erased.stdout) == {"requests": 1, "scrubbed": True}
    assert "erased" in command("show", decision_id).output
    assert command("erase", "--caller", "ann", "--reason", "left", "--before", "1d").exit_code == 0
    assert "not in the log" in command("show", decision_id, "--text").output
    assert command("verify").exit_code == 0


async def test_without_a_key_nothing_that_keeps_text_starts(
    make_config: Callable[..., GatewayConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAFTGATE_TEXT_KEY")
    for config, place in (
        (make_config(policy=POLICY), "rule 'kept'"),
        (configured(make_config(), capture="text"), "audit.text.capture"),
    ):
        with pytest.raises(ConfigError, match="no key to lock them") as caught:
            async with running(config):
                pass
        assert place in str(caught.value)


def test_a_policy_that_keeps_text_cannot_come_into_force_without_a_key(
    make_config: Callable[..., GatewayConfig],
    launch: type[LiveServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DRAFTGATE_TEXT_KEY")
    with launch(make_config(auth=AUTH)) as live:
        current = live.get("/v1/policy", authorization=f"Bearer {ADMIN}")
        headers = {"authorization": f"Bearer {ADMIN}", "if-match": current.headers["etag"]}
        response = live._client.put(
            live.url + "/v1/policy", json={"policy": POLICY}, headers=headers
        )

    assert response.status_code == 400
    assert "no key to lock them" in response.text


def test_the_configuration_keeps_what_no_decision_speaks_of(
    make_config: Callable[..., GatewayConfig], launch: type[LiveServer]
) -> None:
    config = configured(make_config(), capture="text", max_bytes=40)
    with launch(config) as live:
        ids = []
        for text in ("hello", "forbidden"):
            body = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
            ids.append(live.post(body).headers["x-draftgate-decision-id"])
        answered = until(live, ids[0], lambda entry: len(entry.texts) == 2)
        denied = until(live, ids[1], lambda entry: entry.texts)

    assert [(facts.truncated, facts.size) for facts in answered.texts] == [(True, 40), (False, 24)]
    assert [facts.kind for facts in denied.texts] == ["prompt"]


def test_a_text_that_was_copied_to_another_request_does_not_open(live: LiveServer) -> None:
    first, second = ask(live, "a function for ann"), ask(live, "a function for bob")
    kept(live, first)
    kept(live, second)
    path = live.config.audit.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        found = connection.execute(
            "SELECT document, ciphertext FROM texts WHERE decision_id = ? AND kind = 'prompt'",
            (first,),
        ).fetchone()
        connection.execute(
            "UPDATE texts SET document = ?, ciphertext = ? WHERE decision_id = ? AND kind = 'prompt'",
            (*found, second),
        )

    assert show(live, second, "?text=true").status_code == 409
    assert show(live, first, "?text=true").status_code == 200
