"""Turns the fields of a Responses request into what a chat completion would ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.api import body
from gateway.api.naming import naming, refuse_renamed
from gateway.api.requests import SCHEMA_NAME, Asked, of_another, unsupported_content
from gateway.api.responses.schemas import (
    INCLUDABLE,
    REFUSED,
    RENAMED,
    ChosenTool,
    FunctionTool,
    Item,
    Part,
    ResponsesRequest,
    TextConfig,
)
from gateway.api.schemas import (
    JsonSchema,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    ToolDefinition,
    ToolFunction,
)
from gateway.errors import InvalidRequest, UnsupportedParameter, cut
from gateway.types import Message, ToolCall

NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
    ".function.parameters": ".parameters",
}
"""What the parameters of chat completions are called here."""

History = Callable[[str], tuple[Message, ...]]
"""The conversation that ended with the response of this id."""


class AskedResponse(Asked, frozen=True, kw_only=True):
    """What a body of ``POST /v1/responses`` asks for."""

    wire: ResponsesRequest
    turns: tuple[Message, ...]
    """The conversation so far, without instructions: they do not go on to the next response."""


def response_request(fields: Mapping[str, Any], history: History) -> AskedResponse:
    """The body of ``POST /v1/responses``. Raises a GatewayError for what is wrong with it."""
    refuse_renamed(fields, RENAMED)
    wire = body.parse(fields, ResponsesRequest, refused=REFUSED)
    if unknown := [name for name in wire.include or () if name not in INCLUDABLE]:
        raise InvalidRequest(
            f"'include' has {cut(unknown[0])!r}; it may have: {', '.join(sorted(INCLUDABLE))}.",
            param="include",
        )
    earlier = history(wire.previous_response_id) if wire.previous_response_id else ()
    turns = (*earlier, *_messages(wire.input))
    instructions = (Message("system", wire.instructions),) if wire.instructions else ()
    with naming(NAMES):
        asked = of_another(
            "responses",
            wire,
            (*instructions, *turns),
            max_tokens=wire.max_output_tokens,
            response_format=_format(wire.text),
            tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(wire.tools or ())],
            tool_choice=_choice(wire.tool_choice),
            parallel_tool_calls=wire.parallel_tool_calls,
            logprobs=wire.shows_logprobs,
            top_logprobs=wire.top_logprobs if wire.shows_logprobs else None,
        )
    return AskedResponse(asked.request, wire=wire, turns=turns)


def _messages(given: str | Sequence[Item]) -> list[Message]:
    if isinstance(given, str):
        return [Message("user", given)]
    messages: list[Message] = []
    for index, item in enumerate(given):
        param = f"input[{index}]"
        if item.type == "function_call":
            _add_call(messages, _call(item, param))
        elif item.type == "function_call_output":
            output = _text(_needed(item.output, param, "output"), f"{param}.output")
            call_id = _needed(item.call_id, param, "call_id")
            messages.append(Message("tool", output, tool_call_id=call_id))
        elif item.type in (None, "message"):
            content = _text(_needed(item.content, param, "content"), f"{param}.content")
            messages.append(Message(_needed(item.role, param, "role"), content))
        else:
            raise UnsupportedParameter(
                f"Items of type {cut(item.type)!r} are not supported; send messages, function "
                "calls and their outputs.",
                param=f"{param}.type",
            )
    return messages


def _call(item: Item, param: str) -> ToolCall:
    return ToolCall(
        _needed(item.name, param, "name"),
        _needed(item.arguments, param, "arguments"),
        _needed(item.call_id, param, "call_id"),
    )


def _add_call(messages: list[Message], call: ToolCall) -> None:
    """To the assistant's turn that it belongs to."""
    if not messages or messages[-1].role != "assistant":
        messages.append(Message("assistant"))
    last = messages[-1]
    messages[-1] = msgspec.structs.replace(last, tool_calls=(*last.tool_calls, call))


def _needed(value: Any, param: str, field: str) -> Any:
    if value is None:
        raise InvalidRequest(
            f"An item of this type needs the field {field!r}.",
            param=f"{param}.{field}",
            code="missing_required_parameter",
        )
    return value


def _text(content: str | Sequence[Part], param: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _part(part: Part, param: str) -> str:
    if part.type not in ("input_text", "output_text", "text", "refusal"):
        raise unsupported_content(part.type, param)
    field = "refusal" if part.type == "refusal" else "text"
    return str(_needed(getattr(part, field), param, field))


def _format(text: TextConfig | None) -> ResponseFormat | None:
    if text is None:
        return None
    if text.verbosity not in (None, "medium"):
        raise UnsupportedParameter(
            "'text.verbosity' is not supported; leave it out.", param="text.verbosity"
        )
    if text.format is None:
        return None
    if text.format.type != "json_schema":
        return ResponseFormat(text.format.type)
    name = text.format.name or SCHEMA_NAME
    schema = JsonSchema(name, text.format.schema, text.format.strict)
    return ResponseFormat(text.format.type, schema)


def _tool(tool: FunctionTool, param: str) -> ToolDefinition:
    if tool.type != "function":
        return ToolDefinition(tool.type)
    name = _needed(tool.name, param, "name")
    return ToolDefinition(
        tool.type, ToolFunction(name, tool.description, tool.parameters, tool.strict)
    )


def _choice(choice: str | ChosenTool | None) -> str | NamedTool | None:
    if not isinstance(choice, ChosenTool):
        return choice
    if choice.type != "function" or choice.name is None:
        raise UnsupportedParameter(
            "'tool_choice' can name a function: {'type': 'function', 'name': …}.",
            param="tool_choice",
        )
    return NamedTool(choice.type, NamedFunction(choice.name))
