"""Reads a request from a JSON file, for commands that look at requests without sending them.

What a file means, and what is wrong with one, is said by the code that reads bodies for the API.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from gateway.api.bodies import converter
from gateway.api.body import decode
from gateway.errors import ConfigError, InvalidRequest, Problem
from gateway.types import ChatRequest

_MAX_BYTES = 64 << 20


def read_request(path: Path) -> ChatRequest:
    """The request in a file with the body of a completion or a response; ``model`` may be left out.

    Raises ConfigError, also for a request that the gateway would refuse.
    """
    return parse_request(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """All of a file. Raises ConfigError where it cannot be read, or is larger than any request."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([Problem(f"cannot be read: {reason}", path=path)]) from None
    if len(raw) > _MAX_BYTES:
        raise ConfigError([Problem(f"more than {_MAX_BYTES >> 20} MiB", path=path)])
    return raw


def parse_request(raw: bytes, path: Path, endpoint: str | None = None) -> ChatRequest:
    """The request in a body that came from ``path``. Raises ConfigError like `read_request`.

    ``endpoint``: the API that it was sent to, as the log names it, where that is known.
    """
    try:
        return msgspec.structs.replace(_request(raw, path, endpoint), body=raw)
    except InvalidRequest as error:
        hint = "give the JSON body of a chat or text completion, or of a response"
        raise ConfigError([Problem(error.message, path=path, hint=hint)]) from None


def _request(raw: bytes, path: Path, endpoint: str | None) -> ChatRequest:
    fields = {"model": "any", **decode(raw)}
    convert = converter(fields, endpoint)
    if convert is None:
        hint = "as in the body of a chat or text completion, or of a response"
        what = "needs one of `messages`, `prompt` and `input`"
        raise ConfigError([Problem(what, path=path, hint=hint)])
    return convert(fields).request
