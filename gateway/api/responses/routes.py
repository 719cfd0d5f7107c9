"""``POST /v1/responses``, and the responses that are kept."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from gateway.api.answer import answer, read
from gateway.api.auth import needs
from gateway.api.headers import request_id
from gateway.api.identified import identified
from gateway.api.naming import naming
from gateway.api.openapi import described
from gateway.api.render import Event
from gateway.api.responses.answers import DeletedResponse, ResponseEvent, ResponseObject
from gateway.api.responses.kept import Kept, KeptResponse
from gateway.api.responses.requests import NAMES, AskedResponse, response_request
from gateway.api.responses.schemas import ResponsesRequest
from gateway.api.responses.teller import Keep, ResponseTeller
from gateway.api.sse import Patience
from gateway.api.told import Told
from gateway.errors import NotFound, UnsupportedParameter
from gateway.grants import Scope
from gateway.reply import Receipt
from gateway.service import Gateway
from gateway.types import Caller, Message


@post(
    "/responses",
    status_code=200,
    operation_class=described(ResponsesRequest, answer=ResponseObject, events=ResponseEvent),
)
async def create_response(
    request: Request[Any, Any, Any],
    gateway: NamedDependency[Gateway],
    caller: NamedDependency[Caller],
    patience: NamedDependency[Patience],
    kept: NamedDependency[Kept],
) -> Response[Any]:
    """Answer an input, as JSON or as a stream of events; the answer is kept, unless ``store`` is false."""

    def history(response_id: str) -> tuple[Message, ...]:
        try:
            return kept.get(caller.id, response_id).turns
        except NotFound as error:
            raise NotFound(
                error.message, param="previous_response_id", code="previous_response_not_found"
            ) from None

    asked = await read(request, partial(response_request, history=history))

    def keep(body: Event, said: Message) -> None:
        response = KeptResponse(msgspec.json.encode(body), (*asked.turns, said))
        kept.add(caller.id, body["id"], response)

    with naming(NAMES):
        return await answer(request, gateway, caller, asked, _dialect(asked, keep), patience)


@get(
    "/responses/{response_id:str}",
    opt=needs(Scope.INFERENCE),
    operation_class=described(answer=ResponseObject),
)
async def get_response(
    request: Request[Any, Any, Any],
    caller: NamedDependency[Caller],
    kept: NamedDependency[Kept],
    response_id: FromPath[str],
) -> Response[Any]:
    """A response of the same caller, as long as it is kept."""
    if request.query_params.get("stream", "").lower() in ("1", "true"):
        raise UnsupportedParameter("A response cannot be streamed a second time.", param="stream")
    body = kept.get(caller.id, response_id).body
    headers = {"x-request-id": request_id(request)}
    return Response(body, headers=headers, media_type="application/json")


@delete(
    "/responses/{response_id:str}",
    status_code=200,
    opt=needs(Scope.INFERENCE),
    operation_class=described(answer=DeletedResponse),
)
async def delete_response(
    request: Request[Any, Any, Any],
    caller: NamedDependency[Caller],
    kept: NamedDependency[Kept],
    response_id: FromPath[str],
) -> Response[DeletedResponse]:
    """Forget a response of the same caller."""
    kept.remove(caller.id, response_id)
    gone = DeletedResponse(response_id, "response", True)
    return identified(request, gone)


def _dialect(asked: AskedResponse, keep: Keep) -> Told:
    def tell(receipt: Receipt) -> ResponseTeller:
        return ResponseTeller(
            receipt,
            asked.wire,
            demanded=bool(asked.request.called),
            keep=None if asked.wire.store is False else keep,
        )

    return Told(tell)


response_routes = (create_response, get_response, delete_response)
