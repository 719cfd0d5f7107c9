"""A gateway over twin arms: whatever fails, a banned request never reaches the arm that speculates."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config import AuditConfig, BackendConfig, GatewayConfig
from tests.live import LiveServer
from tests.upstreams import MODEL, REPLY, ScriptedUpstream

POLICY = """\
version: 1
name: twins
default: {mode: speculative}
rules:
  - {id: medical, ban: [speculative, hybrid], when: {keyword: [dose]}}
"""
BANNED = {"model": MODEL, "messages": [{"role": "user", "content": "Which dose?"}]}
ALLOWED = {"model": MODEL, "messages": [{"role": "user", "content": "Hello."}]}


@pytest.fixture(scope="module")
def standard() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


@pytest.fixture(scope="module")
def fast() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream(speculates=True) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(
    standard: ScriptedUpstream, fast: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("twins")
    (folder / "policy.yaml").write_text(POLICY)
    options: dict[str, Any] = {
        "model": MODEL,
        "arms": {"standard": {"urls": [standard.url]}, "speculative": {"urls": [fast.url]}},
        "pace": {"first_seconds": 0.3, "idle_seconds": 0.3, "breaker_failures": 100},
        "probes": False,
    }
    config = GatewayConfig(
        backends={"twins": BackendConfig("openai", options)},
        policy=folder / "policy.yaml",
        classifiers=(),
        audit=AuditConfig(f"sqlite:///{folder / 'decisions.db'}"),
    )
    with LiveServer(config) as live:
        yield live


@pytest.mark.parametrize("stream", [False, True])
def test_each_arm_gets_what_the_policy_sends_it(
    gateway: LiveServer, standard: ScriptedUpstream, fast: ScriptedUpstream, stream: bool
) -> None:
    standard.bodies.clear()
    fast.bodies.clear()
    for body, mode, server in ((BANNED, "standard", standard), (ALLOWED, "speculative", fast)):
        answer = gateway.post({**body, "stream": stream, "x_field": 1})

        assert answer.status_code == 200
        assert answer.headers["x-draftgate-mode"] == mode
        assert [each["x_field"] for each in server.bodies] == [1]
        outcome = gateway.entry(answer.headers["x-draftgate-decision-id"]).outcome
        assert outcome is not None
        assert (outcome.attestation, outcome.execution.mode) == ("ok", mode)
        assert outcome.execution.attested_by == "server-metrics"
        if not stream:
            found = answer.json()
            assert found["choices"][0]["message"]["content"] == REPLY
            assert found["usage"]["prompt_tokens"] == 7
            assert found["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize("fault", ["500", "503", "429", "401", "hang", "garbage", "die_midway"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_banned_request_fails_rather_than_reach_the_arm_that_speculates(
    gateway: LiveServer,
    standard: ScriptedUpstream,
    fast: ScriptedUpstream,
    fault: str,
    stream: bool,
) -> None:
    fast.bodies.clear()
    standard.fault = fault
    try:
        # What has begun can only break off.
        begun = fault == "die_midway" and stream
        if begun:
            client = gateway._client
            answer = client.post(
                f"{gateway.url}/v1/chat/completions", json={**BANNED, "stream": True}
            )
            assert b'"error"' in answer.content
        else:
            answer = gateway.post({**BANNED, "stream": stream})
            assert answer.status_code in (429, 500, 503)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert "127.0.0.1" not in answer.text
    finally:
        standard.fault = None

    assert fast.bodies == []
    entry = gateway.last()
    assert entry.outcome is not None
    assert entry.outcome.error
    assert entry.outcome.attestation == "ok"


def test_an_allowed_request_is_answered_by_the_safer_arm_and_the_record_says_so(
    gateway: LiveServer, fast: ScriptedUpstream
) -> None:
    fast.fault = "500"
    try:
        answer = gateway.post(ALLOWED)
    finally:
        fast.fault = None

    assert answer.json()["choices"][0]["message"]["content"] == REPLY
    outcome = gateway.entry(answer.headers["x-draftgate-decision-id"]).outcome
    assert outcome is not None
    run = outcome.execution
    assert (run.mode, run.fallback, outcome.attestation) == ("standard", "arm_down", "ok")


def test_a_server_found_speculating_in_the_standard_arm_closes_it(
    gateway: LiveServer, standard: ScriptedUpstream, fast: ScriptedUpstream
) -> None:
    """The last test of the module: the arm stays closed until the next look."""
    fast.bodies.clear()
    standard.speculates = True
    try:
        answer = gateway.post(BANNED)
        entry = gateway.entry(answer.headers["x-draftgate-decision-id"])
        assert entry.outcome is not None
        assert entry.outcome.attestation == "attestation_failed"

        refused = gateway.post(BANNED)
    finally:
        standard.speculates = False
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "arm_unavailable"
    assert fast.bodies == []
    ready = gateway.get("/readyz")
    assert ready.status_code == 503
    assert "attestation_failed" in ready.text


def test_a_gateway_over_other_engines_never_loads_torch(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    options = {"model": MODEL, "arms": {"standard": {"urls": ["http://127.0.0.1:9"]}}}
    script = (
        "import asyncio, sys, msgspec\n"
        "from gateway.config import AuditConfig, BackendConfig, GatewayConfig\n"
        "from gateway.app import create_app\n"
        "options, folder = msgspec.json.decode(sys.argv[1]), sys.argv[2]\n"
        "from pathlib import Path\n"
        "config = GatewayConfig(backends={'twins': BackendConfig('openai', options)},\n"
        "    policy=Path(folder, 'policy.yaml'), classifiers=(),\n"
        "    audit=AuditConfig(f'sqlite:///{folder}/log.db'))\n"
        "async def main():\n"
        "    async with create_app(config).lifespan():\n"
        "        print([name for name in ('torch', 'transformers', 'decoders') if name in sys.modules])\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", script, msgspec.json.encode(options).decode(), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)

    assert done.stdout.splitlines()[-1] == "[]"


def test_the_other_apis_reach_a_server_as_chat_completions(
    gateway: LiveServer, fast: ScriptedUpstream
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    asked = {
        "/v1/responses": {
            "input": "Hello.",
            "instructions": "Be short.",
            "max_output_tokens": 9,
            "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}},
        },
        "/v1/messages": {
            "messages": [{"role": "user", "content": "Hello."}],
            "system": "Be short.",
            "max_tokens": 9,
            "stop_sequences": ["END"],
        },
    }
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hello."},
    ]
    sent = []
    for path, body in asked.items():
        fast.bodies.clear()
        answer = gateway.post({"model": MODEL, **body}, path)
        assert answer.status_code == 200, answer.text
        sent += fast.bodies

    assert [body["messages"] for body in sent] == [turns, turns]
    assert [body["max_tokens"] for body in sent] == [9, 9]
    assert sent[0]["response_format"]["json_schema"]["schema"] == schema
    assert sent[1]["stop"] == ["END"]
    theirs = {name for body in asked.values() for name in body} - {"messages", "max_tokens"}
    assert all(theirs.isdisjoint(body) for body in sent)


def test_the_other_apis_send_no_nulls_and_no_less_than_was_said(
    gateway: LiveServer, fast: ScriptedUpstream
) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [None], "default": None}}}
    told = [{"role": "user", "content": "Hello."}]
    form = {"type": "json_schema", "schema": schema}
    parameters = {"type": "object", "properties": {}}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/responses", {"input": "Hello.", "text": {"format": form}}),
        ("/v1/messages", {"messages": told, "max_tokens": 9, "output_config": {"format": form}}),
        (
            "/v1/responses",
            {
                "input": "Hello.",
                "text": {"format": {"type": "text"}},
                "tools": [{"type": "function", "name": "f", "parameters": parameters}],
                "tool_choice": "none",
                "parallel_tool_calls": False,
            },
        ),
    ]
    fast.bodies.clear()
    for path, body in asked:
        answer = gateway.post({"model": MODEL, **body}, path)
        assert answer.status_code == 200, answer.text

    *forms, plain = fast.bodies
    expected = {"type": "json_schema", "json_schema": {"name": "response", "schema": schema}}
    assert [body["response_format"] for body in forms] == [expected, expected]
    assert plain["response_format"] == {"type": "text"}
    assert plain["parallel_tool_calls"] is False
    assert all(None not in body.values() for body in fast.bodies)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_the_other_apis_count_the_prompt_as_the_server_did(gateway: LiveServer, path: str) -> None:
    """More of it may be cached than the gateway took it to be."""
    said = {"messages": [{"role": "user", "content": "Hi"}]}
    fields = {"input": "Hi"} if path == "/v1/responses" else {**said, "max_tokens": 9}
    answer = gateway.post({"model": MODEL, **fields}, path)
    usage = answer.json()["usage"]
    entry = gateway.entry(answer.headers["x-draftgate-decision-id"])

    assert entry.decision.request.prompt_tokens != 7
    assert usage["input_tokens"] == 7
