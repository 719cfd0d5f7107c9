"""Errors as Anthropic's API has them, with OpenAI's parameter and code beside what its clients read."""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.errors import GatewayError

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
    "timeout_error",
]
_TYPES: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessageErrorObject(msgspec.Struct, frozen=True):
    """What went wrong."""

    type: ErrorType
    message: str
    param: str | None
    code: str | None


class MessageErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response, and the data of an error event."""

    type: Literal["error"]
    error: MessageErrorObject
    request_id: str


def message_error(error: GatewayError, request_id: str) -> MessageErrorBody:
    """The wire form of ``error``."""
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    given = MessageErrorObject(kind, error.message, error.param, error.code)
    return MessageErrorBody("error", given, request_id)
