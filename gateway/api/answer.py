"""The way from a request's body to a response, the same for both endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import InternalServerException

from gateway.api.auth import found_grant
from gateway.api.body import decode
from gateway.api.errors import ClientGone
from gateway.api.headers import (
    of_receipt,
    request_id,
    requested_mode,
    requested_timeout,
    visible,
)
from gateway.api.lifetime import end_with
from gateway.api.render import Event, Rendering, stream, whole
from gateway.api.requests import Asked
from gateway.api.sse import EventStream, Patience, until_disconnect
from gateway.reply import Receipt, Reply
from gateway.service import Gateway
from gateway.types import Caller


async def read(
    request: Request[Any, Any, Any], convert: Callable[[Mapping[str, Any]], Asked]
) -> Asked:
    """What the body and the headers ask for.

    Raises an InvalidRequest, or ClientGone when the client leaves while sending.
    """
    try:
        raw = await request.body()
    except InternalServerException as error:  # how the framework reports an early disconnect
        raise ClientGone from error
    asked = convert(decode(raw))
    complete = msgspec.structs.replace(
        asked.request, requested_mode=requested_mode(request), headers=visible(request), body=raw
    )
    return msgspec.structs.replace(asked, request=complete)


async def answer(
    request: Request[Any, Any, Any],
    gateway: Gateway,
    caller: Caller,
    asked: Asked,
    rendering: Rendering,
    patience: Patience,
) -> Response[Any]:
    """Let the gateway respond, and render what it says as JSON or as a stream."""
    n = asked.request.n
    if asked.request.stream:
        start = _start(request, gateway, caller, asked, patience=patience.seconds)
        reply = await until_disconnect(request, start)
        included = {
            "include_usage": asked.include_usage,
            "include_steps": asked.include_steps,
        }
        events = stream(reply, rendering, n, **included)
        return EventStream(reply, events, heartbeat=patience.heartbeat)
    body, receipt = await until_disconnect(
        request, _collect(request, gateway, caller, asked, rendering)
    )
    return Response(body, headers=of_receipt(receipt), media_type="application/json")


async def _start(
    request: Request[Any, Any, Any],
    gateway: Gateway,
    caller: Caller,
    asked: Asked,
    *,
    patience: float | None = None,
) -> Reply:
    found_grant(request).require_model(asked.request.model)
    reply = await gateway.respond(
        asked.request,
        caller,
        request_id=request_id(request),
        patience=patience,
        timeout_seconds=requested_timeout(request),
    )
    # Before anybody else holds it: from here on the reply may be lost on its way to the client.
    end_with(request, reply.cancel)
    return reply


async def _collect(
    request: Request[Any, Any, Any],
    gateway: Gateway,
    caller: Caller,
    asked: Asked,
    rendering: Rendering,
) -> tuple[Event, Receipt]:
    reply = await _start(request, gateway, caller, asked)
    return await whole(reply, rendering, asked.request.n), reply.receipt
