"""Quotas, deadlines, full queues, the drain and slow clients, as a client meets them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from gateway.config import AuthConfig, BackendConfig, GatewayConfig, KeyConfig, ServerConfig
from gateway.grants import Quota
from gateway.types import FinishReason
from tests.live import LiveServer

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
LONG = {"model": "scripted", "messages": [{"role": "user", "content": "long"}]}


def connect(live: Any, body: Any) -> socket.socket:
    """Send a request and leave the answer unread."""
    place = urlsplit(live.url)
    content = json.dumps(body).encode()
    client = socket.create_connection((place.hostname, place.port), 10)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    client.sendall(head.encode() + content)
    return client


def await_load(live: Any, running: int, queued: int = 0) -> None:
    """Wait until that many run and wait."""
    deadline = time.monotonic() + 5
    while True:
        backend = live.get("/readyz").json()["backends"]["demo"]
        if (backend["running"], backend["queued"]) == (running, queued):
            return
        assert time.monotonic() < deadline, backend
        time.sleep(0.01)


def test_requests_over_the_quota_are_429_and_say_when_to_come_back(
    start: Callable[..., Any],
) -> None:
    live = start(auth=AuthConfig(quota=Quota(requests_per_minute=2)))
    answers = [live.post(ASK) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [a.headers["x-ratelimit-remaining-requests"] for a in answers] == ["1", "0", "0"]
    refused = answers[2]
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    assert refused.headers["x-ratelimit-reset-requests"].endswith("ms")
    assert len(live.entries()) == 2
    assert live.get("/v1/models").status_code == 200


def test_the_official_client_understands_it(start: Callable[..., Any]) -> None:
    live = start(auth=AuthConfig(quota=Quota(requests_per_minute=1)))
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    ask = client.chat.completions.create
    ask(model="scripted", messages=[{"role": "user", "content": "a"}])

    with pytest.raises(openai.RateLimitError) as caught:
        ask(model="scripted", messages=[{"role": "user", "content": "a"}])
    assert caught.value.code == "rate_limit_exceeded"


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_are_counted_when_an_answer_has_ended(
    start: Callable[..., Any], stream: bool
) -> None:
    live = start(auth=AuthConfig(quota=Quota(tokens_per_minute=100)))
    first = live.post({**LONG, "stream": stream})
    live.last()

    second = live.post(ASK)

    assert first.status_code == 200
    assert second.status_code == 429
    assert "100 tokens per minute" in second.json()["error"]["message"]
    assert int(second.headers["retry-after"]) > 60
    assert second.headers["x-ratelimit-remaining-tokens"] == "0"


def test_so_many_requests_at_a_time(start: Callable[..., Any]) -> None:
    live = start({"chunk_seconds": 0.02}, auth=AuthConfig(quota=Quota(concurrent=1)))
    client = connect(live, {**LONG, "stream": True})
    await_load(live, 1)
    assert live.post(ASK).status_code == 429

    client.close()
    await_load(live, 0)
    deadline = time.monotonic() + 5
    while live.post(ASK).status_code == 429:  # the backend is free a little before the request ends
        assert time.monotonic() < deadline

    assert live.post(b"{").status_code == 400
    assert live.post(ASK).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_takes_too_long_is_cut_off_and_its_outcome_recorded(
    start: Callable[..., Any], stream: bool
) -> None:
    live = start({"chunk_seconds": 0.02})

    answer = live.post({**LONG, "stream": stream}, x_request_timeout="0.3")

    if stream:
        last = answer.text.strip().splitlines()[-1].removeprefix("data: ")
        assert json.loads(last)["error"]["code"] == "request_timeout"
        assert "[DONE]" not in answer.text
    else:
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "request_timeout"
        assert answer.headers["x-should-retry"] == "false"
    await_load(live, 0)
    outcome = live.last().outcome
    assert outcome.finish_reasons == (FinishReason.ERROR,)
    assert outcome.error.startswith("request_timeout")
    assert 0 < outcome.execution.usage.completion_tokens < 400


def test_the_gateways_own_limit_holds_whatever_the_client_asks_for(
    start: Callable[..., Any],
) -> None:
    live = start({"first_chunk_seconds": 60}, server=ServerConfig(request_seconds=0.2))

    for headers in ({}, {"x_request_timeout": "3000"}):
        answer = live.post({**LONG, "stream": True}, **headers)
        assert answer.status_code == 504
        assert "0.2 seconds" in answer.json()["error"]["message"]


@pytest.mark.parametrize("wish", ["", "0", "-1", "nan", "inf", "1e3", "4000", "soon", "1,5", "٣"])
def test_a_timeout_that_is_none_is_refused(server: Any, wish: str) -> None:
    header = {b"x-request-timeout": wish.encode()}
    body = json.dumps(ASK).encode()
    answer = httpx.post(f"{server.url}/v1/chat/completions", content=body, headers=header)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-request-timeout"


def test_who_waits_too_long_for_a_place_is_told_so(start: Callable[..., Any]) -> None:
    live = start({"chunk_seconds": 0.05, "max_running": 1, "queue_seconds": 0.1})
    client = connect(live, {**LONG, "stream": True})
    await_load(live, 1)

    answer = live.post(ASK)

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "queue_timeout"
    assert answer.headers["retry-after"] == "5"
    await_load(live, 1)
    client.close()
    await_load(live, 0)
    assert live.post(ASK).status_code == 200


def test_one_who_does_not_read_stalls_nobody_and_is_let_go(start: Callable[..., Any]) -> None:
    live = start(
        {"replies": {"": ("x" * 20_000 + " ") * 2000}, "max_length": 100_000},
        server=ServerConfig(stall_seconds=0.5),
    )
    client = connect(live, {**ASK, "stream": True})
    await_load(live, 1)

    other = live.post({**ASK, "max_tokens": 3})

    assert other.status_code == 200
    await_load(live, 0)
    entries = [entry for entry in live.entries() if entry.outcome]
    assert {entry.outcome.finish_reasons[0] for entry in entries} == {
        FinishReason.LENGTH,
        FinishReason.CANCELLED,
    }
    client.close()


def test_a_body_that_does_not_arrive_is_408(start: Callable[..., Any]) -> None:
    live = start(server=ServerConfig(body_seconds=0.2))
    place = urlsplit(live.url)
    with socket.create_connection((place.hostname, place.port), 10) as client:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
        client.sendall(head)
        answer = b""
        while not answer.endswith(b"}}") and (piece := client.recv(65536)):
            answer += piece

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_body_timeout" in answer


@pytest.mark.parametrize(
    ("before", "head"),
    [(b"", b""), (b"", HEAD), (b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", HEAD)],
    ids=["nothing", "a part of a head", "a part of the second head"],
)
def test_a_head_that_trickles_in_ends_with_the_connection(
    start: Callable[..., Any], before: bytes, head: bytes
) -> None:
    live = start(server=ServerConfig(head_seconds=0.3))
    place = urlsplit(live.url)
    with socket.create_connection((place.hostname, place.port), 10) as client:
        if before:
            client.sendall(before)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        client.sendall(head)
        closed = False
        for _ in range(100):
            try:
                if head:
                    client.sendall(b"x")
                client.settimeout(0.05)
                closed = client.recv(65536) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
            if closed:
                break

    assert closed
    assert live.get("/healthz").status_code == 200


def test_a_flood_of_one_caller_does_not_starve_another(
    make_config: Callable[..., GatewayConfig], tiny_model: Any
) -> None:
    options = {
        "model": str(tiny_model),
        "served_name": "tiny",
        "num_slots": 1,
        "max_queue": 16,
        "max_length": 256,
        "device": "cpu",
        "threads": 1,
        "waiting": "spin",
        "cost_model": "off",
        "probe": False,
    }
    quota = Quota(concurrent=32)
    config = make_config(auth=keys(quota))
    config = type(config)(
        backends={"demo": BackendConfig("local", options)},
        policy=config.policy,
        classifiers=(),
        audit=config.audit,
        auth=config.auth,
    )
    ended: list[str] = []

    async def ask(client: httpx.AsyncClient, name: str, tokens: int) -> int:
        body = {"model": "tiny", "prompt": "a", "max_tokens": tokens, "ignore_eos": True}
        headers = {"authorization": f"Bearer {name}"}
        answer = await client.post("/v1/completions", json=body, headers=headers)
        ended.append(name)
        return answer.status_code

    async def flood(url: str) -> list[int]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            tasks = [asyncio.create_task(ask(client, "ann", 60)) for _ in range(24)]
            while ended.count("ann") < 9:
                await asyncio.sleep(0.005)
                assert all(not task.done() or task.result() for task in tasks)
            status = await ask(client, "bob", 2)
            after = ended.index("bob")
            statuses = [await task for task in tasks]
            return [status, after, *statuses]

    with LiveServer(config, seconds=60) as live:
        status, after, *statuses = asyncio.run(flood(live.url))

    assert status == 200
    assert after < 14, "the other waits for one or two of the flood, not for all of it"
    assert set(statuses) == {200, 429}


def keys(quota: Quota) -> AuthConfig:
    return AuthConfig(
        tuple(
            KeyConfig(name, hashlib.sha256(name.encode()).hexdigest(), quota=quota)
            for name in ("ann", "bob")
        )
    )
