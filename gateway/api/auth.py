"""The guard that turns an ``Authorization`` header into a `Grant`, before the body is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import Request
from litestar.handlers import BaseRouteHandler

from gateway.access.directory import Directory
from gateway.access.limiter import Limiter, header_values
from gateway.api.edge import say
from gateway.api.headers import Connection
from gateway.api.lifetime import end_with
from gateway.grants import Grant, Scope
from gateway.types import Caller

_STATE = "draftgate_grant"
_SCOPE = "draftgate_scope"

Guard = Callable[[Connection, BaseRouteHandler], Awaitable[None]]


def needs(*scopes: Scope) -> dict[str, Any]:
    """The ``opt`` of a route for keys with all of these scopes; with none, for every key.

    A route that says nothing is one that generates: it needs `Scope.INFERENCE`, and its requests
    count against the caller's quota.
    """
    return {_SCOPE: scopes}


def require_key(provide_directory: Callable[[], Awaitable[Directory]], limiter: Limiter) -> Guard:
    """A guard that lets in whom the directory knows, with the route's scopes and within quota."""

    async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
        directory = await provide_directory()
        grant = await directory.find(_credential(connection))
        connection.state[_STATE] = grant
        scopes = handler.opt.get(_SCOPE)
        for scope in (Scope.INFERENCE,) if scopes is None else scopes:
            grant.require(scope)
        if scopes is None:
            _admit(connection, grant, limiter)

    return guard


async def provide_caller(request: Request[Any, Any, Any]) -> Caller:
    """The caller that the guard found."""
    return found_grant(request).caller


async def provide_grant(request: Request[Any, Any, Any]) -> Grant:
    """The grant that the guard found."""
    return found_grant(request)


def found_grant(connection: Connection) -> Grant:
    """The grant that the guard found; guards run in order, from the outermost."""
    grant = connection.state.get(_STATE)
    if not isinstance(grant, Grant):
        raise TypeError("the route has no API key guard")
    return grant


def _credential(connection: Connection) -> str:
    """The ``Authorization`` header; some clients send the key alone, as ``x-api-key``."""
    given = connection.headers.get("authorization")
    alone = connection.headers.get("x-api-key")
    return f"Bearer {alone}" if given is None and alone is not None else given or ""


def _admit(connection: Connection, grant: Grant, limiter: Limiter) -> None:
    try:
        end_with(connection, limiter.admit(grant))
    finally:
        say(connection, header_values(limiter.allowances(grant.caller.id)))
