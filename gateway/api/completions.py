"""``POST /v1/completions``."""

from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency

from gateway.api import body
from gateway.api.answer import answer, read_body
from gateway.api.headers import requested_mode, visible
from gateway.api.render import CompletionRendering
from gateway.api.schemas import CompletionRequest
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.service import Gateway
from gateway.types import Caller, ChatRequest

DEFAULT_MAX_TOKENS = 16
"""What the OpenAI API gives this endpoint when the request does not say."""


@post("/completions", status_code=200)
async def create_completion(
    request: Request[Any, Any, Any],
    gateway: NamedDependency[Gateway],
    caller: NamedDependency[Caller],
) -> Response[Any]:
    """Continue a text, as JSON or as a stream of events."""
    raw = await read_body(request)
    wire, _ = body.parse(raw, CompletionRequest)
    max_tokens = DEFAULT_MAX_TOKENS if wire.max_tokens is None else wire.max_tokens
    asked = ChatRequest(
        model=wire.model,
        prompt=_prompt(wire.prompt),
        sampling=body.sampling(wire, max_tokens=max_tokens, logprobs=wire.logprobs),
        n=wire.n or 1,
        stream=bool(wire.stream),
        requested_mode=requested_mode(request),
        headers=visible(request),
        body=raw,
    )
    include_usage = wire.stream_options is not None and wire.stream_options.include_usage
    rendering = CompletionRendering(wire.model)
    return await answer(request, gateway, caller, asked, rendering, include_usage=include_usage)


def _prompt(prompt: str | list[str | int | list[int]]) -> str | tuple[int, ...]:
    """One prompt, as text or as token ids."""
    if isinstance(prompt, str):
        return prompt
    if not prompt:
        raise InvalidRequest("'prompt' is an empty list.", param="prompt", code="empty_array")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return _token_ids(ids)
    if ids or len(prompt) > 1:
        raise UnsupportedParameter(
            "Only one prompt a request is supported: send a string, a list of one string, or a "
            "list of token ids.",
            param="prompt",
        )
    only = prompt[0]
    if isinstance(only, str):
        return only
    return _token_ids(only if isinstance(only, list) else [only])


def _token_ids(ids: list[int]) -> tuple[int, ...]:
    if not ids:
        raise InvalidRequest("'prompt' is an empty list.", param="prompt", code="empty_array")
    if any(token < 0 for token in ids):
        raise InvalidRequest("A token id in 'prompt' is negative.", param="prompt")
    return tuple(ids)
