"""``POST /v1/completions``."""

from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency

from gateway.api.answer import answer, read
from gateway.api.answers import Completion
from gateway.api.chunked import Chunked
from gateway.api.openapi import described
from gateway.api.render import CompletionRendering
from gateway.api.requests import completion_request
from gateway.api.schemas import CompletionRequest
from gateway.api.sse import Patience
from gateway.service import Gateway
from gateway.types import Caller


@post(
    "/completions",
    status_code=200,
    operation_class=described(CompletionRequest, answer=Completion, events=Completion),
)
async def create_completion(
    request: Request[Any, Any, Any],
    gateway: NamedDependency[Gateway],
    caller: NamedDependency[Caller],
    patience: NamedDependency[Patience],
) -> Response[Any]:
    """Continue a text, as JSON or as a stream of events."""
    asked = await read(request, completion_request)
    rendering = CompletionRendering(asked.request.model)
    return await answer(request, gateway, caller, asked, Chunked(rendering, asked), patience)
