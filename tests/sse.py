"""What every stream must be, byte for byte; run on whatever the API's tests stream."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

_DONE = "[DONE]"
_COMMENT = b": keep-alive"
_KEYS = {
    "chat.completion.chunk": ["id", "object", "created", "model", "system_fingerprint", "choices"],
    "text_completion": ["id", "object", "created", "model", "choices", "system_fingerprint"],
}


def checked(data: bytes, *, failed: bool = False, whole: bool = True) -> list[dict[str, Any]]:
    """The JSON events of a stream; its framing, keys and order are asserted.

    ``failed``: it must end in the error event and without DONE, instead of with it. ``whole``: what
    the model says is characters, so that none may be a replacement.
    """
    found = [_json(frame) for frame in _frames(data, whole)]
    if failed:
        assert list(found[-1]) == ["error"], found
        assert list(found[-1]["error"]) == ["message", "type", "param", "code"]
        _check_chunks(found[:-1], ended=False)
        return found
    assert found[-1] == _DONE
    assert found.count(_DONE) == 1
    chunks = found[:-1]
    _check_chunks(chunks, ended=True)
    return chunks


def check(data: bytes, *, whole: bool = True) -> None:
    """Assert that it is a stream, whole or failed."""
    if data.startswith(b"event: "):
        named(data, whole=whole)
        return
    checked(data, failed=not data.endswith(b"data: [DONE]\n\n"), whole=whole)


def named(data: bytes, *, whole: bool = True) -> list[dict[str, Any]]:
    """The events of a stream whose events have names; framing, names and order are asserted."""
    assert data.endswith(b"\n\n")
    assert b"\r" not in data
    assert not whole or "�" not in data.decode()
    events = []
    for frame in data.removesuffix(b"\n\n").split(b"\n\n"):
        if frame == _COMMENT:
            continue
        name, _, rest = frame.partition(b"\n")
        assert rest.startswith(b"data: "), frame
        assert b"\n" not in rest
        event = json.loads(rest.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        events.append(event)
    events = [event for event in events if event["type"] != "ping"]
    if events[0]["type"].startswith("response."):
        _check_response(events)
    else:
        _check_message(events)
    return events


def _check_response(events: list[dict[str, Any]]) -> None:
    """Numbered without a gap; every item opens, grows and closes, and the response has them all."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    status = last["type"].removeprefix("response.")
    assert status in ("completed", "incomplete", "failed")
    assert last["response"]["status"] == status
    assert {e["response"]["id"] for e in events if "response" in e} == {last["response"]["id"]}
    closed = []
    for index in sorted({e["output_index"] for e in events if "output_index" in e}):
        mine = [e for e in events if e.get("output_index") == index]
        ids = {e["item_id"] for e in mine if "item_id" in e} | {
            e["item"]["id"] for e in mine if "item" in e
        }
        assert len(ids) == 1
        assert mine[0]["type"] == "response.output_item.added"
        if status == "failed" and mine[-1]["type"] != "response.output_item.done":
            continue
        closed.append(mine[-1]["item"])
        field = "arguments" if closed[-1]["type"] == "function_call" else "text"
        text = "".join(e["delta"] for e in mine if "delta" in e)
        done = [e for e in mine if e["type"].endswith((f"{field}.done", "arguments.done"))]
        assert [e[field] for e in done] == [text]
    if status != "failed":
        assert last["response"]["output"] == closed
        assert last["response"]["usage"]["total_tokens"] >= 0


def _check_message(events: list[dict[str, Any]]) -> None:
    """Blocks one after the other between start and stop; an error is the last event."""
    if events[-1]["type"] == "error":
        assert list(events[-1]["error"]) == ["type", "message", "param", "code"]
        return
    assert events[0]["type"] == "message_start"
    assert [e["type"] for e in events[-2:]] == ["message_delta", "message_stop"]
    blocks = events[1:-2]
    index = -1
    for event in blocks:
        kind = event["type"].removeprefix("content_block_")
        if kind == "start":
            index += 1
        assert event["index"] == index
    starts = [i for i, e in enumerate(blocks) if e["type"] == "content_block_start"]
    for start, end in pairwise([*starts, len(blocks)]):
        kinds = [e["type"] for e in blocks[start:end]]
        assert set(kinds[1:-1]) <= {"content_block_delta"}
        assert kinds[-1] == "content_block_stop"


def _frames(data: bytes, whole: bool) -> list[bytes]:
    assert data.endswith(b"\n\n")
    assert b"\r" not in data
    assert not whole or "�" not in data.decode()
    frames = [f for f in data.removesuffix(b"\n\n").split(b"\n\n") if f != _COMMENT]
    assert all(frame.startswith(b"data: ") and b"\n" not in frame for frame in frames), frames
    return frames


def _json(frame: bytes) -> Any:
    text = frame.removeprefix(b"data: ").decode()
    return text if text == _DONE else json.loads(text)


def _check_chunks(chunks: list[dict[str, Any]], *, ended: bool) -> None:
    if not chunks:
        return
    for key in ("id", "object", "created", "model"):
        assert len({chunk[key] for chunk in chunks}) == 1, key
    keys = _KEYS[chunks[0]["object"]]
    with_usage = "usage" in chunks[0]
    for chunk in chunks:
        assert list(chunk) == [*keys, "usage"] if with_usage else list(chunk) == keys
    said = chunks[:-1] if with_usage and ended else chunks
    assert all(chunk.get("usage") is None for chunk in said)
    assert all(len(chunk["choices"]) == 1 for chunk in said)
    if with_usage and ended:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["total_tokens"] >= 0
    _check_choices([chunk["choices"][0] for chunk in said], ended=ended)


def _check_choices(choices: list[dict[str, Any]], *, ended: bool) -> None:
    """Each has its role once and first, and one finish reason, last and null until then."""
    for index in {choice["index"] for choice in choices}:
        mine = [choice for choice in choices if choice["index"] == index]
        reasons = [choice["finish_reason"] for choice in mine]
        assert reasons[:-1] == [None] * (len(mine) - 1)
        assert (reasons[-1] is not None) is ended or not ended
        if "delta" in mine[0]:
            roles = ["role" in choice["delta"] for choice in mine]
            assert roles == [True] + [False] * (len(mine) - 1)
            assert not ended or mine[-1]["delta"] == {}
