"""``POST /v1/chat/completions``."""

from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency

from gateway.api.answer import answer, read
from gateway.api.answers import ChatCompletion, ChatCompletionChunk
from gateway.api.chunked import Chunked
from gateway.api.openapi import described
from gateway.api.render import ChatRendering
from gateway.api.requests import chat_request
from gateway.api.schemas import ChatCompletionRequest
from gateway.api.sse import Patience
from gateway.api.tool_calls import ToolCallRendering
from gateway.service import Gateway
from gateway.types import Caller


@post(
    "/chat/completions",
    status_code=200,
    operation_class=described(
        ChatCompletionRequest, answer=ChatCompletion, events=ChatCompletionChunk
    ),
)
async def create_chat_completion(
    request: Request[Any, Any, Any],
    gateway: NamedDependency[Gateway],
    caller: NamedDependency[Caller],
    patience: NamedDependency[Patience],
) -> Response[Any]:
    """Answer a conversation, as JSON or as a stream of events."""
    asked = await read(request, chat_request)
    form = ToolCallRendering if asked.request.called else ChatRendering
    rendering = form(asked.request.model, asked.request.n)
    return await answer(request, gateway, caller, asked, Chunked(rendering, asked), patience)
