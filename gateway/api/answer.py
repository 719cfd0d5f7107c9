"""The way from a request's body to a response, the same for every endpoint that generates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol, TypeVar

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
from gateway.api.render import Event
from gateway.api.requests import Asked
from gateway.api.sse import EventStream, Patience, until_disconnect
from gateway.reply import Receipt, Reply
from gateway.service import Gateway
from gateway.types import Caller

A = TypeVar("A", bound=Asked)


class Dialect(Protocol):
    """How one endpoint writes its answers down. Each answer has one of its own."""

    @property
    def sign(self) -> bytes:
        """What keeps a silent stream alive."""
        ...

    def frames(self, reply: Reply) -> AsyncIterator[bytes]:
        """The stream, to its end; one that fails midway says so."""
        ...

    async def whole(self, reply: Reply) -> Event:
        """The answer in one object. Raises the reply's GatewayError, with the receipt."""
        ...


async def read(request: Request[Any, Any, Any], convert: Callable[[Mapping[str, Any]], A]) -> A:
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
    dialect: Dialect,
    patience: Patience,
) -> Response[Any]:
    """Let the gateway respond, and write down what it says as JSON or as a stream."""
    if asked.request.stream:
        start = _start(request, gateway, caller, asked, patience=patience.seconds)
        reply = await until_disconnect(request, start)
        frames = dialect.frames(reply)
        return EventStream(reply, frames, heartbeat=patience.heartbeat, sign=dialect.sign)
    body, receipt = await until_disconnect(
        request, _collect(request, gateway, caller, asked, dialect)
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
    dialect: Dialect,
) -> tuple[Event, Receipt]:
    reply = await _start(request, gateway, caller, asked)
    return await dialect.whole(reply), reply.receipt
