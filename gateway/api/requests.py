"""Turns the fields of a request body into a `ChatRequest`, for the endpoints and for dry runs alike.

It knows nothing of HTTP: headers and the raw body are the endpoint's to add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.api import body
from gateway.api.grammars import grammar_of, refuse_ends
from gateway.api.schemas import (
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    ContentPart,
    FunctionCall,
    SamplingFields,
    StreamOptions,
)
from gateway.api.tools import called_of, may_call, tools_of
from gateway.errors import InvalidRequest, UnsupportedParameter, cut
from gateway.types import ChatRequest, Message, ToolCall

DEFAULT_MAX_TOKENS = 16
"""What the OpenAI API gives a text completion when the request does not say."""

SCHEMA_NAME = "response"
"""What a schema is called where an API has no name for it: in chat completions it needs one."""


class Asked(msgspec.Struct, frozen=True):
    """What one body asks for: the request, and how its answer is to be shown."""

    request: ChatRequest
    include_usage: bool = False
    include_steps: bool = False


def chat_request(fields: Mapping[str, Any]) -> Asked:
    """The body of a chat completion. Raises InvalidRequest or UnsupportedParameter."""
    wire = body.parse(fields, ChatCompletionRequest)
    messages = (_message(turn, f"messages[{index}]") for index, turn in enumerate(wire.messages))
    return of_conversation(wire, tuple(messages))


def of_another(
    endpoint: str, wire: SamplingFields, messages: tuple[Message, ...], **given: Any
) -> Asked:
    """What the body of another API asks for: the fields it shares with chat completions, and ``given``.

    Raises InvalidRequest or UnsupportedParameter.
    """
    shared = {name: getattr(wire, name) for name in SamplingFields.__struct_fields__}
    chat = ChatCompletionRequest(**{**shared, "messages": [], **given})
    asked = of_conversation(chat, messages)
    request = msgspec.structs.replace(
        asked.request, endpoint=endpoint, chat_body=msgspec.json.encode(_said(chat))
    )
    return msgspec.structs.replace(asked, request=request)


def _said(value: Any) -> Any:
    """Structs without the fields that say nothing. What a client wrote itself, schemas say, stays."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value).items()
        return {name: _said(field) for name, field in fields if field is not None and field != []}
    return [_said(item) for item in value] if isinstance(value, list) else value


def of_conversation(wire: ChatCompletionRequest, messages: tuple[Message, ...]) -> Asked:
    """What ``wire`` asks for, with these messages in place of its own.

    Raises InvalidRequest or UnsupportedParameter.
    """
    tools, grammar = tools_of(wire), grammar_of(wire)
    called = called_of(wire, tools)
    if called:
        if grammar is not None:
            raise InvalidRequest(
                f"{grammar.param!r} cannot go with a 'tool_choice' that asks for a call.",
                param=grammar.param,
            )
        refuse_ends(wire)
    if may_call(wire) and grammar is not None:
        raise UnsupportedParameter(
            f"{grammar.param!r} cannot go with 'tool_choice': 'auto', as nothing but it could be "
            "answered; send 'tool_choice': 'none' or 'required'.",
            param=grammar.param,
        )
    request = ChatRequest(
        model=wire.model,
        messages=messages,
        sampling=body.sampling(wire, max_tokens=_max_tokens(wire), logprobs=_logprobs(wire)),
        n=wire.n or 1,
        stream=bool(wire.stream),
        has_tools=bool(tools),
        response_format=grammar.kind if grammar is not None else "text",
        grammar=grammar,
        tools=tools,
        called=called,
        may_call=may_call(wire),
        several_calls=wire.parallel_tool_calls is not False,
    )
    return Asked(request, *_included(wire))


def completion_request(fields: Mapping[str, Any]) -> Asked:
    """The body of a text completion. Raises InvalidRequest or UnsupportedParameter."""
    wire = body.parse(fields, CompletionRequest)
    max_tokens = DEFAULT_MAX_TOKENS if wire.max_tokens is None else wire.max_tokens
    if max_tokens == 0 and not wire.echo:
        raise InvalidRequest(
            "'max_tokens': 0 needs 'echo': true; without either there is nothing to answer.",
            param="max_tokens",
            code="integer_below_min_value",
        )
    n = wire.n or 1
    grammar = grammar_of(wire)
    request = ChatRequest(
        model=wire.model,
        prompt=_prompt(wire.prompt),
        sampling=body.sampling(wire, max_tokens=max_tokens, logprobs=wire.logprobs),
        n=n,
        best_of=_best_of(wire, n),
        echo=bool(wire.echo),
        stream=bool(wire.stream),
        response_format=grammar.kind if grammar is not None else "text",
        grammar=grammar,
    )
    return Asked(request, *_included(wire))


def _included(wire: SamplingFields) -> tuple[bool, bool]:
    """Whether a stream carries the usage, and the decode steps."""
    wanted = wire.stream_options or StreamOptions()
    return bool(wanted.include_usage), bool(wanted.include_steps)


def _best_of(wire: CompletionRequest, n: int) -> int | None:
    """None where every answer is a choice."""
    if wire.best_of is None or wire.best_of == n:
        return None
    if wire.best_of < n:
        raise InvalidRequest(
            f"'best_of' is {wire.best_of}, fewer than the {n} choices that 'n' asks for; raise it "
            "or leave it out.",
            param="best_of",
        )
    if wire.stream:
        raise InvalidRequest(
            "'best_of' cannot be streamed: the best answers are known only at the end. Send "
            "'stream': false.",
            param="best_of",
        )
    return wire.best_of


def _message(wire: ChatMessage, param: str) -> Message:
    """One turn; a field that its role does not have, or that nobody judges, goes no further."""
    content = wire.content
    if isinstance(content, list):
        content = "\n".join(
            _part(part, f"{param}.content[{index}]") for index, part in enumerate(content)
        )
    elif content is None and wire.role != "assistant":
        raise InvalidRequest(
            f"A message with the role {wire.role!r} needs content.",
            param=f"{param}.content",
            code="missing_required_parameter",
        )
    if wire.role == "assistant":
        return Message(wire.role, content, wire.refusal, _tool_calls(wire))
    return Message(
        wire.role, content, tool_call_id=wire.tool_call_id if wire.role == "tool" else None
    )


def unsupported_content(type: str, param: str) -> UnsupportedParameter:
    """Images, audio and files are no text."""
    return UnsupportedParameter(
        f"Content of type {cut(type)!r} is not supported; send text.", param=param
    )


def _part(part: ContentPart, param: str) -> str:
    if part.type not in ("text", "refusal"):
        raise unsupported_content(part.type, param)
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise InvalidRequest(
            f"A part of type {part.type!r} needs the field {part.type!r}.",
            param=f"{param}.{part.type}",
            code="missing_required_parameter",
        )
    return text


def _tool_calls(wire: ChatMessage) -> tuple[ToolCall, ...]:
    calls = [_tool_call(call.function, call.id) for call in wire.tool_calls or () if call.function]
    if wire.function_call is not None:
        calls.append(_tool_call(wire.function_call, None))
    return tuple(calls)


def _tool_call(function: FunctionCall, call_id: str | None) -> ToolCall:
    return ToolCall(function.name or "", function.arguments or "", call_id or "")


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
