"""What every stream must be, byte for byte; run on whatever the API's tests stream."""

from __future__ import annotations

import json
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
    checked(data, failed=not data.endswith(b"data: [DONE]\n\n"), whole=whole)


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
