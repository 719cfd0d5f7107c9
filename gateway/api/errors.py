"""Any exception as an OpenAI error: a JSON response, or the same object inside a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.status_codes import HTTP_413_REQUEST_ENTITY_TOO_LARGE

from gateway.api.headers import of_receipt, request_id
from gateway.errors import (
    AuthenticationFailed,
    GatewayError,
    InvalidRequest,
    NotFound,
    RequestTooLarge,
    cut,
)
from gateway.log import Log
from gateway.reply import Receipt


class ClientGone(Exception):
    """The client closed the connection before its answer was ready; there is nobody to tell."""


class ErrorObject(msgspec.Struct, frozen=True):
    """The error object of the OpenAI API: always all four keys."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error response."""

    error: ErrorObject


def body_of(error: GatewayError) -> ErrorBody:
    """The wire form of ``error``."""
    return ErrorBody(ErrorObject(error.message, error.type, error.param, error.code))


def _shape(error: GatewayError, request_id: str) -> object:
    return body_of(error)


def error_handler(
    log: Log, *, shape: Callable[[GatewayError, str], object] = _shape
) -> Callable[[Request[Any, Any, Any], Exception], Response[Any]]:
    """What answers the exceptions of every Draftgate route. Quick: it runs on the event loop.

    ``shape`` makes the body of an error and the request's id.
    """

    def answer(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        if isinstance(error, ClientGone):
            return Response(None, status_code=499)
        known = _known(request, error)
        if known.status >= 500 and known is not error:
            log.error("request_failed", request_id=request_id(request), exc_info=error)
        return _response(request, error, known, shape(known, request_id(request)))

    return answer


def _response(
    request: Request[Any, Any, Any], error: Exception, known: GatewayError, body: object
) -> Response[Any]:
    headers = {"x-request-id": request_id(request)}
    if isinstance(known.receipt, Receipt):
        headers |= of_receipt(known.receipt)
    if known.status in (429, 503):
        headers["retry-after"] = str(known.retry_after or 1)
    if known.status in (500, 504):
        # The official client would ask twice more, for the same failure at the same price.
        headers["x-should-retry"] = "false"
    if isinstance(known, AuthenticationFailed):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowedException) and error.headers:
        headers |= {name.lower(): value for name, value in error.headers.items()}
    return Response(
        body,
        status_code=known.status,
        headers=headers,
        media_type="application/json",
    )


def _known(request: Request[Any, Any, Any], error: Exception) -> GatewayError:
    if isinstance(error, GatewayError):
        return error
    path = cut(request.url.path)
    if isinstance(error, NotFoundException):
        return NotFound(f"Nothing is at {path}.")
    if isinstance(error, MethodNotAllowedException):
        known = InvalidRequest(
            f"{path} does not take {cut(request.method)}.", code="method_not_allowed"
        )
        known.status = error.status_code
        return known
    if isinstance(error, HTTPException):
        if error.status_code == HTTP_413_REQUEST_ENTITY_TOO_LARGE:
            return RequestTooLarge("The request body is over the configured limit; send less.")
        if error.status_code < 500:
            known = InvalidRequest(error.detail)
            known.status = error.status_code
            return known
    return GatewayError("The server failed; its log says why.", code="internal_error")
