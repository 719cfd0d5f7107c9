"""Which API a request's body is of, for those who have the body and not the route it came by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.api.messages.requests import message_request
from gateway.api.requests import Asked, chat_request, completion_request
from gateway.api.responses.requests import response_request
from gateway.errors import InvalidRequest
from gateway.types import Message

Convert = Callable[[Mapping[str, Any]], Asked]


def converter(fields: Mapping[str, Any], endpoint: str | None = None) -> Convert | None:
    """What turns the fields of a body into a request; None where it is of no API, or of two.

    ``endpoint`` as the log names it. Without it, one with ``messages`` is a chat completion's.
    """
    if endpoint is not None:
        return _CONVERTERS.get(endpoint)
    if ("messages" in fields) != ("prompt" in fields):
        return chat_request if "messages" in fields else completion_request
    return _response if "input" in fields and "messages" not in fields else None


def _response(fields: Mapping[str, Any]) -> Asked:
    return response_request(fields, _no_history)


def _no_history(_: str) -> tuple[Message, ...]:
    raise InvalidRequest(
        "The request goes on from 'previous_response_id', and its body does not have that "
        "conversation; put the whole conversation into 'input'.",
        param="previous_response_id",
    )


_CONVERTERS: Mapping[str, Convert] = {
    "chat.completions": chat_request,
    "completions": completion_request,
    "messages": message_request,
    "responses": _response,
}
