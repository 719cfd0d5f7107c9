"""Answers that are one object: its JSON, under the request's id."""

from __future__ import annotations

from typing import Any, TypeVar

from litestar import Request, Response

from gateway.api.headers import request_id

T = TypeVar("T")


def identified(
    request: Request[Any, Any, Any], body: T, *, status_code: int | None = None, **headers: str
) -> Response[T]:
    """``body`` with ``x-request-id`` and ``headers``; without a status, with the route's own."""
    headers["x-request-id"] = request_id(request)
    return Response(body, status_code=status_code, headers=headers)
