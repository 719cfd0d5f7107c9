"""Clients that leave the engine: queued, while their prompt is read, and while they are answered."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from decoders.models.fused import FusedModel
from gateway.config import BackendConfig, GatewayConfig
from gateway.types import FinishReason
from tests.api.test_disconnect import abort, connect, idle, running
from tests.live import LiveServer

PROMPT = "abcdefgh" * 20


@pytest.fixture
def slow(
    make_config: Callable[..., GatewayConfig], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LiveServer]:
    """One slot, one prompt token a step, and a step that takes a while."""
    forward = FusedModel.forward

    def and_wait(self: FusedModel, rows: Any) -> Any:
        time.sleep(0.01)
        return forward(self, rows)

    monkeypatch.setattr(FusedModel, "forward", and_wait)
    options = {
        "model": str(tiny_model),
        "served_name": "scripted",
        "num_slots": 1,
        "prefill_chunk_tokens": 1,
        "device": "cpu",
        "threads": 1,
        "waiting": "spin",
        "cost_model": "off",
        "probe": False,
    }
    config = make_config()
    backends = {"demo": BackendConfig("local", options)}
    with LiveServer(msgspec.structs.replace(config, backends=backends), seconds=60) as live:
        yield live


def check_gone(live: LiveServer, *, most_tokens: int) -> None:
    """Nothing runs, the outcome says why, and the slot is there for the next."""
    assert idle(live)
    outcome = live.last().outcome
    assert outcome is not None
    assert outcome.finish_reasons == (FinishReason.CANCELLED,)
    assert outcome.execution.usage.completion_tokens <= most_tokens
    body = {"model": "scripted", "prompt": "a", "max_tokens": 2, "ignore_eos": True}
    assert live.post(body, "/v1/completions").status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_the_prompt_is_read(slow: LiveServer, stream: bool) -> None:
    client = connect(slow, PROMPT, stream=stream)
    running(slow, 1)

    abort(client)

    check_gone(slow, most_tokens=0)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_the_answer_is_written(slow: LiveServer, stream: bool) -> None:
    client = connect(slow, "a", stream=stream, ignore_eos=True, max_tokens=150)
    running(slow, 1)
    if stream:
        assert client.recv(65536)
    else:
        time.sleep(0.3)

    abort(client)

    check_gone(slow, most_tokens=149)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_the_queue(slow: LiveServer, stream: bool) -> None:
    first = connect(slow, "a", stream=True, ignore_eos=True, max_tokens=150)
    running(slow, 1)
    second = connect(slow, PROMPT, stream=stream)
    await_queued(slow, 1)

    abort(second)

    await_queued(slow, 0)
    assert slow.get("/readyz").json()["backends"]["demo"]["running"] == 1
    abort(first)
    check_gone(slow, most_tokens=149)


def await_queued(live: LiveServer, count: int) -> None:
    deadline = time.monotonic() + 5
    while live.get("/readyz").json()["backends"]["demo"]["queued"] != count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def received(client: socket.socket, end: bytes) -> bytes:
    """What comes until this."""
    answer = b""
    while not answer.endswith(end):
        piece = client.recv(65536)
        assert piece, answer
        answer += piece
    return answer


def test_an_engine_that_dies_under_load_answers_in_words_and_comes_back(
    slow: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(slow, "a", ignore_eos=True, max_tokens=150)
    running(slow, 1)

    def die(self: Any) -> None:
        raise MemoryError("the loop is broken")

    with monkeypatch.context() as broken:
        broken.setattr("decoders.engine.Engine._admit", die)
        answer = received(client, b"}}")
        while slow.get("/readyz").status_code == 200:
            time.sleep(0.005)
        refused = slow.post({"model": "scripted", "prompt": "a"}, "/v1/completions")
    client.close()

    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"backend_failed" in answer
    assert b"loop is broken" not in answer
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    deadline = time.monotonic() + 15
    while slow.get("/readyz").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    body = {"model": "scripted", "prompt": "a", "max_tokens": 2, "ignore_eos": True}
    assert slow.post(body, "/v1/completions").status_code == 200
