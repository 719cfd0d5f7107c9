"""Reads a request from a JSON file, for commands that look at requests without sending them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gateway.errors import ConfigError, Problem
from gateway.types import ChatRequest, Message

_MAX_BYTES = 64 << 20


class _Part(msgspec.Struct, frozen=True):
    type: str = "text"
    text: str = ""


class _Turn(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_Part] | None = None

    def message(self) -> Message:
        parts = self.content if isinstance(self.content, list) else [_Part(text=self.content or "")]
        return Message(self.role, "\n".join(part.text for part in parts if part.text))


class _Body(msgspec.Struct, frozen=True):
    model: str = "any"
    messages: list[_Turn] | None = None
    prompt: str | None = None
    stream: bool | None = None
    n: int | None = None
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None


def read_request(path: Path) -> ChatRequest:
    """The request in a file with the body of a chat or text completion. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise ConfigError([Problem(f"more than {_MAX_BYTES >> 20} MiB", path=path)])
        body = msgspec.json.decode(raw, type=_Body)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([Problem(f"cannot be read: {reason}", path=path)]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "give the JSON body of a chat completion"
        raise ConfigError([Problem(f"not a request: {error}", path=path, hint=hint)]) from None
    if (body.messages is None) == (body.prompt is None):
        hint = "as in the body of a chat or text completion"
        raise ConfigError([Problem("needs either `messages` or `prompt`", path=path, hint=hint)])
    return ChatRequest(
        model=body.model,
        messages=tuple(turn.message() for turn in body.messages or ()),
        prompt=body.prompt,
        stream=bool(body.stream),
        n=body.n or 1,
        has_tools=bool(body.tools),
        response_format=str((body.response_format or {}).get("type", "text")),
        body=raw,
    )
