"""The way from a parsed request to a response, the same for both endpoints."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.exceptions import InternalServerException

from gateway.api.errors import ClientGone
from gateway.api.headers import of_receipt, request_id
from gateway.api.render import Event, Rendering, stream, whole
from gateway.api.sse import EventStream, until_disconnect
from gateway.reply import Receipt
from gateway.service import Gateway
from gateway.types import Caller, ChatRequest


async def read_body(request: Request[Any, Any, Any]) -> bytes:
    """The whole body. Raises ClientGone when the client leaves while sending it."""
    try:
        return await request.body()
    except InternalServerException as error:  # how the framework reports an early disconnect
        raise ClientGone from error


async def answer(
    request: Request[Any, Any, Any],
    gateway: Gateway,
    caller: Caller,
    asked: ChatRequest,
    rendering: Rendering,
    *,
    include_usage: bool,
) -> Response[Any]:
    """Let the gateway respond, and render what it says as JSON or as a stream."""
    chosen_id = request_id(request)
    if asked.stream:
        work = gateway.respond(asked, caller, request_id=chosen_id)
        reply = await until_disconnect(request, work)
        return EventStream(reply, stream(reply, rendering, asked.n, include_usage=include_usage))
    body, receipt = await until_disconnect(
        request, _collect(gateway, caller, asked, rendering, chosen_id)
    )
    return Response(body, headers=of_receipt(receipt), media_type="application/json")


async def _collect(
    gateway: Gateway, caller: Caller, asked: ChatRequest, rendering: Rendering, chosen_id: str
) -> tuple[Event, Receipt]:
    reply = await gateway.respond(asked, caller, request_id=chosen_id)
    return await whole(reply, rendering, asked.n), reply.receipt
