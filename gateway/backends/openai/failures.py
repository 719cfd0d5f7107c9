"""What went wrong at a server, as our own errors; and whether another replica may do better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.errors import (
    ArmUnavailable,
    BackendFailed,
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    QueueFull,
    cut,
)

_LENGTH_CODES = ("context_length_exceeded", "exceed_context_size_error")
_LENGTH_WORDS = ("maximum context length", "context length", "context size", "max_model_len")
_SHOWN = 500
_CLIENTS = (400, 413, 422)
"""What the client can mend."""


class Failed(Exception):
    """One attempt at one replica failed before anything of the answer was there."""

    def __init__(
        self, error: GatewayError, *, again: bool, blame: bool, by_request: bool = False
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.again = again
        """Whether another replica of the same arm may serve it."""
        self.blame = blame
        """Whether it speaks against this replica."""
        self.by_request = by_request
        """Whether it may be the request that breaks servers, each one that it is sent to."""


def broken(detail: str) -> Failed:
    """A server that is away, hangs or talks nonsense."""
    return Failed(BackendFailed(detail=detail), again=True, blame=True)


def of_answer(status: int, body: bytes, headers: Mapping[str, str], where: str) -> Failed:
    """What an answer other than 200 means."""
    message, code, param = _words(body)
    detail = f"{where} answered {status}: {message[:_SHOWN]}"
    wait = _retry_after(headers)
    if status == 429:
        full = QueueFull("The model's servers are busy; try again soon.", retry_after=wait)
        return Failed(full, again=True, blame=False)
    if status == 503:
        away = ArmUnavailable("The model's servers take no work; try again soon.", retry_after=wait)
        return Failed(away, again=True, blame=True)
    if status not in _CLIENTS:
        # A wrong key, name or place is the operator's fault, not the client's, and its words are not
        # theirs.
        failed = BackendFailed(detail=detail)
        return Failed(failed, again=True, blame=True, by_request=status == 500)
    kind = ContextLengthExceeded if _is_length(message, code) else InvalidRequest
    error = kind(f"The model's server refused the request: {cut(message)}", param=param)
    return Failed(error, again=False, blame=False)


def of_event(error: Any, where: str) -> BackendFailed:
    """An error in the middle of a stream."""
    message = error.get("message") if isinstance(error, dict) else error
    return BackendFailed(detail=f"{where} broke off: {str(message)[:_SHOWN]}")


def midway(error: GatewayError) -> BackendFailed:
    """The same, of an answer that is half sent."""
    detail = error.detail if isinstance(error, BackendFailed) else error.message
    return BackendFailed(detail=detail)


def _words(body: bytes) -> tuple[str, str | None, str | None]:
    """Message, code and parameter of an error object, as far as it is one."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body.decode(errors="replace").strip(), None, None
    error = found.get("error", found) if isinstance(found, dict) else found
    if not isinstance(error, dict):
        return str(error), None, None
    message = error.get("message") or error.get("detail") or body.decode(errors="replace")
    code, param = error.get("code") or error.get("type"), error.get("param")
    return str(message), code and str(code), param if isinstance(param, str) else None


def _is_length(message: str, code: str | None) -> bool:
    lower = message.lower()
    return code in _LENGTH_CODES or any(words in lower for words in _LENGTH_WORDS)


def _retry_after(headers: Mapping[str, str]) -> int:
    given = headers.get("retry-after", "")
    return min(int(given), 3600) if given.isascii() and given.isdigit() and int(given) else 1
