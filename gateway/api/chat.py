"""``POST /v1/chat/completions``."""

from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency

from gateway.api import body
from gateway.api.answer import answer, read_body
from gateway.api.headers import requested_mode, visible
from gateway.api.render import ChatRendering
from gateway.api.schemas import ChatCompletionRequest, ChatMessage
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.service import Gateway
from gateway.types import Caller, ChatRequest, Message


@post("/chat/completions", status_code=200)
async def create_chat_completion(
    request: Request[Any, Any, Any],
    gateway: NamedDependency[Gateway],
    caller: NamedDependency[Caller],
) -> Response[Any]:
    """Answer a conversation, as JSON or as a stream of events."""
    raw = await read_body(request)
    wire, fields = body.parse(raw, ChatCompletionRequest)
    asked = ChatRequest(
        model=wire.model,
        messages=_messages(wire.messages, fields["messages"]),
        sampling=body.sampling(wire, max_tokens=_max_tokens(wire), logprobs=_logprobs(wire)),
        n=wire.n or 1,
        stream=bool(wire.stream),
        requested_mode=requested_mode(request),
        headers=visible(request),
        body=raw,
    )
    rendering = ChatRendering(wire.model, asked.n)
    include_usage = wire.stream_options is not None and wire.stream_options.include_usage
    return await answer(request, gateway, caller, asked, rendering, include_usage=include_usage)


def _messages(
    messages: Sequence[ChatMessage], raw: Sequence[Mapping[str, Any]]
) -> tuple[Message, ...]:
    return tuple(
        Message(message.role, _text(message, f"messages[{index}]"), raw[index])
        for index, message in enumerate(messages)
    )


def _text(message: ChatMessage, param: str) -> str:
    """All text of one turn, calls included: whatever the model reads, the classifiers read too."""
    texts = _calls(message)
    if isinstance(message.content, str):
        texts.insert(0, message.content)
    elif message.content is not None:
        for index, part in enumerate(message.content):
            if part.type not in ("text", "refusal"):
                raise UnsupportedParameter(
                    f"Content of type {part.type[:40]!r} is not supported; send text.",
                    param=f"{param}.content[{index}]",
                )
            text = part.text if part.type == "text" else part.refusal
            if text is None:
                raise InvalidRequest(
                    f"A part of type {part.type!r} needs the field {part.type!r}.",
                    param=f"{param}.content[{index}].{part.type}",
                    code="missing_required_parameter",
                )
            texts.insert(index, text)
    elif message.role != "assistant":
        raise InvalidRequest(
            f"A message with the role {message.role!r} needs content.",
            param=f"{param}.content",
            code="missing_required_parameter",
        )
    return "\n".join(texts)


def _calls(message: ChatMessage) -> list[str]:
    functions = [call.function for call in message.tool_calls or ()]
    calls = [call for call in (*functions, message.function_call) if call is not None]
    texts = [text for call in calls for text in (call.name, call.arguments) if text]
    return [message.refusal, *texts] if message.refusal else texts


def _max_tokens(wire: ChatCompletionRequest) -> int | None:
    old, new = wire.max_tokens, wire.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            "'max_tokens' and 'max_completion_tokens' differ; send one of them.",
            param="max_completion_tokens",
        )
    return old if new is None else new


def _logprobs(wire: ChatCompletionRequest) -> int | None:
    if wire.logprobs:
        return wire.top_logprobs or 0
    if wire.top_logprobs is not None:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return None
