"""API keys: the guard that turns an ``Authorization`` header into a `Caller`, before the body."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from litestar import Request
from litestar.handlers import BaseRouteHandler

from gateway.api.headers import Connection
from gateway.config import KeyConfig
from gateway.errors import AuthenticationFailed
from gateway.types import Caller

_STATE = "draftgate_caller"

Guard = Callable[[Connection, BaseRouteHandler], Awaitable[None]]


def require_api_key(keys: Sequence[KeyConfig]) -> Guard:
    """A guard for these keys; with none, everybody is the anonymous caller."""

    async def guard(connection: Connection, _: BaseRouteHandler) -> None:
        connection.state[_STATE] = _caller(connection, keys) if keys else Caller()

    return guard


async def provide_caller(request: Request[Any, Any, Any]) -> Caller:
    """The caller that the guard found."""
    return found_caller(request)


def found_caller(connection: Connection) -> Caller:
    """The caller that the guard found; guards run in order, from the outermost."""
    caller = connection.state.get(_STATE)
    if not isinstance(caller, Caller):
        raise TypeError("the route has no API key guard")
    return caller


def _caller(connection: Connection, keys: Sequence[KeyConfig]) -> Caller:
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        raise AuthenticationFailed(
            "This gateway needs an API key; send the header 'Authorization: Bearer YOUR_KEY'."
        )
    # Header text is its bytes read as Latin-1; the digest is of the bytes, as sha256sum takes them.
    digest = hashlib.sha256(given.strip().encode("latin-1", "replace")).hexdigest()
    # Every key is compared, and each in constant time: the time taken says nothing of the keys.
    found = [key for key in keys if hmac.compare_digest(digest, key.sha256.lower())]
    if not found:
        raise AuthenticationFailed("The API key is not known to this gateway.")
    return Caller(id=found[0].id, team=found[0].team, admin=found[0].admin)
