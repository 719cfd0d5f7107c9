"""Clients that leave: the work stops, its place is freed, and the outcome says cancelled."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.types import FinishReason


def connect(
    live: Any, text: str = "long", path: str = "/v1/chat/completions", **fields: Any
) -> socket.socket:
    """Send a request and leave the answer unread."""
    place = urlsplit(live.url)
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}
    content = json.dumps(body).encode()
    client = socket.create_connection((place.hostname, place.port), 10)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    client.sendall(head.encode() + content)
    return client


def abort(client: socket.socket) -> None:
    """Close with a reset, as a killed process does."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def idle(live: Any, *, seconds: float = 3.0) -> bool:
    """Whether the backend comes to rest in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        backend = live.get("/readyz").json()["backends"]["demo"]
        if (backend["running"], backend["queued"]) == (0, 0):
            return True
        time.sleep(0.02)
    return False


def running(live: Any, count: int) -> None:
    """Wait until that many run."""
    deadline = time.monotonic() + 5
    while live.get("/readyz").json()["backends"]["demo"]["running"] != count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", [abort, socket.socket.close])
def test_leaving_midway_cancels_the_answer(
    start: Callable[..., Any], stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    live = start({"chunk_seconds": 0.02})
    client = connect(live, stream=stream)
    running(live, 1)
    time.sleep(0.1)

    leave(client)

    assert idle(live)
    outcome = live.last().outcome
    assert outcome.finish_reasons == (FinishReason.CANCELLED,)
    assert 0 < outcome.execution.usage.completion_tokens < 400
    assert outcome.attestation == "ok"


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_before_the_first_chunk_cancels_the_answer(
    start: Callable[..., Any], stream: bool
) -> None:
    live = start({"first_chunk_seconds": 60})
    client = connect(live, stream=stream)
    running(live, 1)

    abort(client)

    assert idle(live)
    outcome = live.last().outcome
    assert outcome.finish_reasons == (FinishReason.CANCELLED,)
    assert outcome.execution.usage.completion_tokens == 0
    assert outcome.timings.first_token is None


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_the_queue_gives_up_the_place_in_it(
    start: Callable[..., Any], stream: bool
) -> None:
    live = start({"chunk_seconds": 0.05, "max_running": 1, "max_queued": 1})
    first = connect(live, stream=True)
    running(live, 1)
    second = connect(live, stream=stream)
    while live.get("/readyz").json()["backends"]["demo"]["queued"] != 1:
        time.sleep(0.01)

    abort(second)

    deadline = time.monotonic() + 3
    while live.get("/readyz").json()["backends"]["demo"]["queued"] != 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    abort(first)
    assert idle(live)


def test_a_client_that_stops_reading_holds_the_answer_back_and_can_still_be_cancelled(
    start: Callable[..., Any],
) -> None:
    live = start({"replies": {"": ("x" * 20_000 + " ") * 2000}, "max_length": 100_000})
    client = connect(live, "hello", stream=True)
    running(live, 1)
    time.sleep(0.3)
    assert not idle(live, seconds=0.1), "40 MB cannot be on their way to a client that reads none"

    abort(client)

    assert idle(live)
    assert live.last().outcome.finish_reasons == (FinishReason.CANCELLED,)


def test_leaving_while_the_body_is_on_its_way_is_no_error(server: Any) -> None:
    place = urlsplit(server.url)
    client = socket.create_connection((place.hostname, place.port), 10)
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    time.sleep(0.05)

    abort(client)

    assert server.get("/healthz").status_code == 200


def test_the_loop_stays_responsive_after_clients_have_left(start: Callable[..., Any]) -> None:
    live = start({"chunk_seconds": 0.0, "max_running": 32})
    clients = [connect(live, stream=True) for _ in range(16)]
    for client in clients:
        abort(client)

    began = time.perf_counter()
    assert live.get("/healthz").status_code == 200
    assert time.perf_counter() - began < 1
    assert idle(live)


def test_others_go_on_when_one_leaves(start: Callable[..., Any]) -> None:
    live = start({"chunk_seconds": 0.002, "max_running": 32})

    async def ask() -> int:
        async with httpx.AsyncClient(timeout=20) as client:
            body = {"model": "scripted", "messages": [{"role": "user", "content": "long"}]}
            answer = await client.post(f"{live.url}/v1/chat/completions", json=body)
            return len(answer.json()["choices"][0]["message"]["content"].split())

    async def all_of_them() -> list[int]:
        tasks = [asyncio.create_task(ask()) for _ in range(8)]
        for client in [connect(live, stream=n % 2 == 0) for n in range(8)]:
            await asyncio.sleep(0.01)
            abort(client)
        return await asyncio.gather(*tasks)

    assert asyncio.run(all_of_them()) == [400] * 8
    assert idle(live)
    reasons = [entry.outcome.finish_reasons for entry in live.entries() if entry.outcome]
    assert reasons.count((FinishReason.STOP,)) == 8
    assert (FinishReason.CANCELLED,) in reasons
