"""What every answer bears and every request is held to, whatever its route: headers and patience."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from litestar.datastructures import MutableScopeHeaders
from litestar.handlers import BaseRouteHandler
from litestar.types import ASGIApp, Message, Middleware, Receive, Scope, Send

from gateway.api.headers import Connection
from gateway.errors import SlowRequest, UnsupportedEncoding

SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
"""Unless the route says otherwise. A page of ours may load what this server serves, and no more."""
_STATE = "draftgate_headers"


def say(connection: Connection, headers: Mapping[str, str]) -> None:
    """Add headers to the answer of this request, whatever that becomes."""
    connection.scope["state"].setdefault(_STATE, {}).update(headers)


async def secure(message: Message, scope: Scope) -> None:
    """Add the headers to an answer as it begins; those that it has stay."""
    if message["type"] != "http.response.start":
        return
    headers = MutableScopeHeaders(message)
    said: Mapping[str, str] = scope.get("state", {}).get(_STATE, {})
    for name, value in {**SECURITY_HEADERS, **said}.items():
        headers.setdefault(name, value)


async def refuse_compressed(connection: Connection, _: BaseRouteHandler) -> None:
    """A guard. Raises UnsupportedEncoding for a body that would have to be unpacked."""
    encoding = connection.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedEncoding("Send the body as it is, without Content-Encoding.")


def with_edge(*, body_seconds: float, stall_seconds: float) -> Middleware:
    """Middleware that adds the headers, and waits no longer for a client than it says."""

    def wrap(app: ASGIApp) -> ASGIApp:
        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            patient = _Patience(receive, body_seconds)

            async def answer(message: Message) -> None:
                await secure(message, scope)
                try:
                    async with asyncio.timeout(stall_seconds):
                        await send(message)
                except TimeoutError:
                    raise ConnectionAbortedError("the client does not read its answer") from None

            await app(scope, patient.receive, answer)

        return run

    return wrap


class _Patience:
    """Receives for a request: its body within a time, and then whether the client has left."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self._deadline: float | None = None
        self._complete = False

    async def receive(self) -> Any:
        """Raises SlowRequest."""
        if self._complete:
            return await self._receive()
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + self._seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise SlowRequest(
                f"The body did not arrive within {self._seconds:g} seconds."
            ) from None
        self._complete = not message.get("more_body", False)
        return message
