"""Every error a client or operator can meet.

GatewayError
├── InvalidRequest (400)
│   ├── UnsupportedParameter
│   └── ContextLengthExceeded
├── AuthenticationFailed (401)
├── PermissionDenied (403)
│   └── PolicyDenied
├── ModelNotFound (404)
├── NotFound (404)
├── Conflict (409)
├── PreconditionFailed (412)
├── SlowRequest (408)
├── RequestTooLarge (413)
├── UnsupportedEncoding (415)
├── PreconditionRequired (428)
├── QueueFull (429)
├── RateLimited (429)
├── BackendFailed (500)
├── Unavailable (503)
│   ├── AuditUnavailable
│   ├── ArmUnavailable
│   └── QueueTimeout
└── DeadlineExceeded (504)
ConfigError             configuration or policy that is wrong; never sent to a client
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path

ECHO_LENGTH = 80
"""Characters of a client's own text that an error message repeats."""
EXCERPT_LENGTH = 100
"""Characters of a line that are shown around the place of a problem."""


def cut(text: str) -> str:
    """A client's text as an error message may repeat it: a megabyte of it helps nobody."""
    return text if len(text) <= ECHO_LENGTH else f"{text[:ECHO_LENGTH]}…"


class GatewayError(Exception):
    """An error with an HTTP status and the four fields of an OpenAI error object."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        self.retry_after = retry_after
        """Seconds after which a retry may succeed, for the ``Retry-After`` header."""
        self.receipt: object | None = None
        """The `gateway.reply.Receipt` of a request that had been decided before it failed."""


class InvalidRequest(GatewayError):
    """The request's own fault: a wrong value, a missing field, JSON that does not parse."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class UnsupportedParameter(InvalidRequest):
    """A parameter that means something but that this backend cannot honour."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer do not fit into the model's context."""

    code = "context_length_exceeded"


class AuthenticationFailed(GatewayError):
    """No API key, or one that nobody has."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class PermissionDenied(GatewayError):
    """The caller is known but may not do this."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class PolicyDenied(PermissionDenied):
    """A policy rule refused the request."""

    code = "policy_denied"


class ModelNotFound(GatewayError):
    """No backend serves the model that was asked for."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class NotFound(GatewayError):
    """Nothing is at this address."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class Conflict(GatewayError):
    """What is there does not let it be changed this way."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class TextLocked(GatewayError):
    """There is a text, and it cannot be read: the key is not there, or the text was changed."""

    status = 409
    type = "invalid_request_error"
    code = "text_locked"


class PreconditionFailed(GatewayError):
    """Somebody else was faster: what was to be replaced is not there any more."""

    status = 412
    type = "invalid_request_error"
    code = "precondition_failed"


class PreconditionRequired(GatewayError):
    """The request must say what it means to replace."""

    status = 428
    type = "invalid_request_error"
    code = "precondition_required"


class RequestTooLarge(GatewayError):
    """The body is over the configured limit."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class SlowRequest(GatewayError):
    """The body did not arrive in time."""

    status = 408
    type = "invalid_request_error"
    code = "request_body_timeout"


class UnsupportedEncoding(GatewayError):
    """The body is compressed: a few bytes of it could stand for gigabytes."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_content_encoding"


class RateLimited(GatewayError):
    """The caller has used up its quota."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_seconds: float) -> None:
        super().__init__(message, retry_after=max(1, math.ceil(retry_seconds)))


class QueueFull(GatewayError):
    """The engine's bounded queue is full."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, retry_after=retry_after)


class BackendFailed(GatewayError):
    """Generation broke. ``detail`` says why: for the log and the records, never for the client."""

    status = 500
    type = "server_error"
    code = "backend_failed"

    def __init__(
        self,
        message: str = "The answer could not be generated; the server's log says why.",
        *,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)
        self.detail = message if detail is None else detail


class Unavailable(GatewayError):
    """Not ready to generate: still loading, draining or stopped."""

    status = 503
    type = "server_error"
    code = "unavailable"


class AuditUnavailable(Unavailable):
    """The decision could not be recorded, so nothing was generated."""

    code = "audit_unavailable"


class ArmUnavailable(Unavailable):
    """No server answers of those that may: one that decodes otherwise is not asked in their place."""

    code = "arm_unavailable"


class QueueTimeout(Unavailable):
    """The request waited too long for its turn."""

    code = "queue_timeout"


class DeadlineExceeded(GatewayError):
    """The request took longer than it may, by its own wish or the configuration's."""

    status = 504
    type = "server_error"
    code = "request_timeout"


class Problem:
    """One thing wrong in a file: where, what, and how to fix it."""

    def __init__(
        self,
        message: str,
        *,
        path: Path | str,
        line: int = 0,
        column: int = 0,
        hint: str = "",
        source: str = "",
    ) -> None:
        self.message = message
        self.path = str(path)
        self.line = line
        self.column = column
        self.hint = hint
        self.source = source
        """The text of the line."""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        return f"{place}: {self.message}" + (f" ({self.hint})" if self.hint else "")

    def with_source(self) -> str:
        """The same, with the line below it and a caret under the column, where there is a line."""
        if not self.source.strip():
            return str(self)
        start = max(
            0, min(self.column - 1 - EXCERPT_LENGTH // 2, len(self.source) - EXCERPT_LENGTH)
        )
        shown = self.source[start : start + EXCERPT_LENGTH]
        before = shown[: self.column - 1 - start]
        line = "".join(c if c.isprintable() else " " for c in shown)
        columns = sum(_columns(c) for c in before)
        margin = f"{self.line:>5} | "
        return f"{self}\n{margin}{line}\n{' ' * (len(margin) - 2)}| {' ' * columns}^"


def _columns(character: str) -> int:
    """How wide a terminal shows it."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class ConfigError(Exception):
    """One or more problems in a configuration or policy file, all at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

    def with_sources(self) -> str:
        """Every problem with its line, for terminals."""
        return "\n".join(problem.with_source() for problem in self.problems)
