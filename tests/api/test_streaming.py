"""The bytes of a stream, read from the socket."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.config import ServerConfig
from tests.sse import checked as events


def ask(text: str = "hello", /, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    return {"model": "scripted", "messages": [message], "stream": True, **fields}


def raw(live: Any, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[str, bytes]:
    """Head and de-chunked body of a response, from the socket."""
    place = urlsplit(live.url)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(content)}"
    received = b""
    with socket.create_connection((place.hostname, place.port), 10) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + content)
        while piece := client.recv(65536):
            received += piece
    answer, _, rest = received.partition(b"\r\n\r\n")
    data = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        data += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return answer.decode(), data


KEYS = ["id", "object", "created", "model", "system_fingerprint", "choices"]


def text_of(found: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for event in found
        for choice in event["choices"]
        if choice["index"] == index
    )


def test_the_head_of_a_stream(server: Any) -> None:
    head, _ = raw(server, ask())

    lines = head.lower().split("\r\n")
    assert lines[0] == "http/1.1 200 ok"
    assert "content-type: text/event-stream; charset=utf-8" in lines
    assert "cache-control: no-cache" in lines
    assert "x-accel-buffering: no" in lines
    assert not any(line.startswith("content-length") for line in lines)


def test_a_chat_stream_event_by_event(server: Any) -> None:
    _, data = raw(server, ask())

    found = events(data)

    assert len({(event["id"], event["created"], event["model"]) for event in found}) == 1
    assert {"chat.completion.chunk"} == {event["object"] for event in found}
    assert all(list(event) == KEYS for event in found)
    choices = [event["choices"][0] for event in found]
    assert all(
        list(choice) == ["index", "delta", "logprobs", "finish_reason"] for choice in choices
    )
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [c["delta"]["content"] for c in choices[1:-1]] == ["The ", "answer ", "is ", "short."]
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * 5 + ["stop"]


def test_include_usage_adds_a_last_chunk_and_null_before(server: Any) -> None:
    _, data = raw(server, ask(stream_options={"include_usage": True}))

    found = events(data)

    assert all(event["usage"] is None for event in found[:-1])
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 4,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert found[0]["id"] == found[-1]["id"]


@pytest.mark.parametrize("wish", [None, False])
def test_usage_that_is_not_wanted_is_not_sent(server: Any, wish: bool | None) -> None:
    _, data = raw(server, ask(stream_options={"include_usage": wish}))

    assert not any("usage" in event for event in events(data))


@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 3}, {"stop": "is"}, {"max_tokens": 2}, {"logprobs": True, "top_logprobs": 1}],
    ids=str,
)
@pytest.mark.parametrize("text", ["hello", "naïve", "silence"])
def test_a_stream_says_the_same_as_one_answer(
    server: Any, text: str, fields: dict[str, Any]
) -> None:
    options = {"include_usage": True}
    _, data = raw(server, ask(text, seed=1, stream_options=options, **fields))
    whole = server.post({**ask(text, seed=1, **fields), "stream": False}).json()

    found = events(data)

    assert whole["usage"] == found[-1]["usage"]
    for choice in whole["choices"]:
        index = choice["index"]
        assert choice["message"]["content"] == text_of(found, index)
        mine = [c for event in found for c in event["choices"] if c["index"] == index]
        assert [choice["finish_reason"]] == [c["finish_reason"] for c in mine if c["finish_reason"]]
        logprobs = [token for c in mine if c["logprobs"] for token in c["logprobs"]["content"]]
        assert ((choice["logprobs"] or {}).get("content") or []) == logprobs


@pytest.mark.parametrize(
    ("text", "mode"),
    [("hello", "standard"), ("write a function", "speculative"), ("a refund", "hybrid")],
)
def test_the_pieces_of_a_stream_are_the_answer_in_every_mode(
    server: Any, text: str, mode: str
) -> None:
    head, data = raw(server, ask(text, seed=1))
    whole = server.post({**ask(text, seed=1), "stream": False})

    assert f"x-draftgate-mode: {mode}" in head
    assert whole.headers["x-draftgate-mode"] == mode
    assert text_of(events(data)) == whole.json()["choices"][0]["message"]["content"]


def test_text_of_any_language_arrives_whole(server: Any) -> None:
    _, data = raw(server, ask("naïve"))

    assert text_of(events(data)) == "Ein naïver Gruß: 안녕하세요 🙂 fin."
    assert "�" not in data.decode()


def test_the_roles_of_all_choices_come_first_and_in_order(server: Any) -> None:
    _, data = raw(server, ask(n=4))

    found = events(data)

    assert [event["choices"][0]["index"] for event in found[:4]] == [0, 1, 2, 3]
    assert all("role" in event["choices"][0]["delta"] for event in found[:4])
    assert all("role" not in event["choices"][0]["delta"] for event in found[4:])


def test_a_completion_stream(server: Any) -> None:
    body = {
        "model": "scripted",
        "prompt": "hello",
        "stream": True,
        "logprobs": 1,
        "stream_options": {"include_usage": True},
    }
    head, data = raw(server, body, "/v1/completions")

    found = events(data)

    assert "200 OK" in head
    assert {"text_completion"} == {event["object"] for event in found}
    assert all(event["id"].startswith("cmpl-") for event in found)
    texts = [choice["text"] for event in found for choice in event["choices"]]
    assert "".join(texts) == "The answer is short."
    offsets = [
        offset
        for event in found[:-1]
        if event["choices"][0]["logprobs"]
        for offset in event["choices"][0]["logprobs"]["text_offset"]
    ]
    assert offsets == [0, 4, 11, 14]
    assert found[-2]["choices"][0]["finish_reason"] == "stop"
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == 4


def test_chunks_arrive_when_they_are_made(start: Callable[..., Any]) -> None:
    live = start({"chunk_seconds": 0.1})
    times = []

    with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=ask()) as response:
        for line in response.iter_lines():
            if '"content":"' in line and '"content":""' not in line:
                times.append(time.perf_counter())

    assert len(times) == 4
    assert all(later - sooner > 0.05 for sooner, later in itertools.pairwise(times))


def test_a_failure_midway_is_an_error_event_and_no_done(start: Callable[..., Any]) -> None:
    live = start({"fail_after": 2, "fail_message": "Broke\nhere."})

    head, data = raw(live, ask())

    assert "200 OK" in head
    frames = data.removesuffix(b"\n\n").split(b"\n\n")
    assert b"data: [DONE]" not in frames
    assert json.loads(frames[-1].removeprefix(b"data: ")) == {
        "error": {
            "message": "Broke\nhere.",
            "type": "server_error",
            "param": None,
            "code": "backend_failed",
        }
    }
    assert live.last().outcome.finish_reasons[0] == "error"


def test_a_stream_that_waits_long_begins_without_its_first_token(start: Callable[..., Any]) -> None:
    server = ServerConfig(patience_seconds=0.05, heartbeat_seconds=0.05)
    live = start({"first_chunk_seconds": 0.5}, server=server)

    head, data = raw(live, ask())

    assert "200 OK" in head
    assert "x-draftgate-decision-id" in head
    assert data.startswith(b": keep-alive\n\n")
    assert text_of(events(data)) == "The answer is short."


def test_what_fails_after_the_patience_is_an_error_event(start: Callable[..., Any]) -> None:
    server = ServerConfig(patience_seconds=0.05, heartbeat_seconds=5)
    live = start({"first_chunk_seconds": 0.3, "fail_after": 0}, server=server)

    head, data = raw(live, ask())

    assert "200 OK" in head
    (error,) = events(data, failed=True)
    assert error["error"]["code"] == "backend_failed"


def test_what_fails_within_the_patience_is_an_error_response(start: Callable[..., Any]) -> None:
    response = start({"first_chunk_seconds": 0.1, "fail_after": 0}).post(ask())

    assert response.status_code == 500
    assert response.json()["error"]["code"] == "backend_failed"


def test_comments_come_between_tokens_too(start: Callable[..., Any]) -> None:
    server = ServerConfig(heartbeat_seconds=0.05)
    _, data = raw(start({"chunk_seconds": 0.3}, server=server), ask())

    assert b": keep-alive\n\n" in data
    assert text_of(events(data)) == "The answer is short."


def test_a_stream_that_is_not_late_has_no_comments(server: Any) -> None:
    _, data = raw(server, ask())

    assert b":" not in {line[:1] for line in data.splitlines()}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_decode_steps_are_in_a_stream_that_asks_for_them_and_in_no_other(
    server: Any, path: str
) -> None:
    body = ask() if "chat" in path else {"model": "scripted", "prompt": "hello", "stream": True}
    _, plain = raw(server, body, path)
    _, told = raw(server, {**body, "stream_options": {"include_steps": True}}, path)

    assert b"draftgate" not in plain
    # A script has no decode steps to tell of.
    assert b'"draftgate":{"steps":[]}' in told
