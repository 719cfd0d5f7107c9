"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from functools import partial
from typing import Any

from litestar import Request, Response, Router, post
from litestar.di import NamedDependency

from gateway.api.answer import answer, read
from gateway.api.auth import found_grant
from gateway.api.errors import error_handler
from gateway.api.identified import identified
from gateway.api.messages.answers import MessageEvent, MessageObject, TokenCount
from gateway.api.messages.errors import MessageErrorBody, message_error
from gateway.api.messages.requests import NAMES, count_request, message_request
from gateway.api.messages.schemas import CountTokensRequest, MessagesRequest
from gateway.api.messages.teller import MessageTeller
from gateway.api.naming import naming
from gateway.api.openapi import described
from gateway.api.sse import Patience
from gateway.api.told import Told, named
from gateway.log import Log
from gateway.service import Gateway
from gateway.types import Caller

PING = named({"type": "ping"})
"""What keeps a silent stream alive."""


@post(
    "/",
    status_code=200,
    operation_class=described(
        MessagesRequest, answer=MessageObject, events=MessageEvent, errors=MessageErrorBody
    ),
)
async def create_message(
    request: Request[Any, Any, Any],
    gateway: NamedDependency[Gateway],
    caller: NamedDependency[Caller],
    patience: NamedDependency[Patience],
) -> Response[Any]:
    """Answer a conversation, as JSON or as a stream of events."""
    asked = await read(request, message_request)
    tell = partial(MessageTeller, model=asked.request.model, demanded=bool(asked.request.called))
    with naming(NAMES):
        return await answer(request, gateway, caller, asked, Told(tell, sign=PING), patience)


@post(
    "/count_tokens",
    status_code=200,
    operation_class=described(CountTokensRequest, answer=TokenCount, errors=MessageErrorBody),
)
async def count_message_tokens(
    request: Request[Any, Any, Any], gateway: NamedDependency[Gateway]
) -> Response[TokenCount]:
    """How many tokens the prompt of a message would have; nothing is generated or recorded."""
    asked = (await read(request, count_request)).request
    found_grant(request).require_model(asked.model)
    with naming(NAMES):
        count = await gateway.count(asked)
    return identified(request, TokenCount(count))


def message_routes(log: Log) -> Router:
    """Both routes, with errors in their own form."""
    return Router(
        "/messages",
        route_handlers=[create_message, count_message_tokens],
        exception_handlers={Exception: error_handler(log, shape=message_error)},
    )
