"""Ends with a request what it has started, however the request ends.

A response may never be sent: a hook of the host application raises, a middleware answers in its
place, the request's task is cancelled. Only the request itself is sure to end. It knows nothing of
what it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.api.headers import Connection

_STATE = "draftgate_lifetime"


def with_lifetime(app: ASGIApp) -> ASGIApp:
    """Middleware that calls, at the end of each request, what `end_with` was given."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as lifetime:
            scope["state"][_STATE] = lifetime
            await app(scope, receive, send)

    return run


def end_with(connection: Connection, end: Callable[[], None]) -> None:
    """Call ``end`` when the request is over."""
    lifetime = connection.state.get(_STATE)
    if not isinstance(lifetime, ExitStack):
        raise TypeError("the route has no lifetime middleware")
    lifetime.callback(end)
