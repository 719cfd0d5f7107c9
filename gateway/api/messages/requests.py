"""Turns the fields of a Messages request into what a chat completion would ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.api import body
from gateway.api.messages.schemas import (
    REFUSED,
    RENAMED,
    Block,
    CountTokensRequest,
    MessagesFields,
    MessagesRequest,
    OutputConfig,
    TextBlock,
    ToolChoice,
    ToolDefinition,
    Turn,
)
from gateway.api.naming import naming, refuse_renamed
from gateway.api.requests import SCHEMA_NAME, Asked, of_another, unsupported_content
from gateway.api.schemas import JsonSchema, NamedFunction, NamedTool, ResponseFormat, ToolFunction
from gateway.api.schemas import ToolDefinition as ChatTool
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.types import Message, ToolCall

NAMES: Mapping[str, str] = {
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    ".function.parameters": ".input_schema",
}
"""What the parameters of chat completions are called here."""


def message_request(fields: Mapping[str, Any]) -> Asked:
    """The body of ``POST /v1/messages``. Raises InvalidRequest or UnsupportedParameter."""
    refuse_renamed(fields, RENAMED)
    return _asked(body.parse(fields, MessagesRequest, refused=REFUSED))


def count_request(fields: Mapping[str, Any]) -> Asked:
    """The body of ``POST /v1/messages/count_tokens``. Raises InvalidRequest or UnsupportedParameter."""
    refuse_renamed(fields, RENAMED)
    return _asked(body.parse(fields, CountTokensRequest, refused=REFUSED))


def _asked(wire: MessagesFields) -> Asked:
    system = _text(wire.system, "system") if wire.system else ""
    first = [Message("system", system)] if system else []
    turns = [
        message
        for index, turn in enumerate(wire.messages)
        for message in _messages(turn, f"messages[{index}]")
    ]
    if wire.messages[-1].role == "assistant":
        raise UnsupportedParameter(
            "The last message is the assistant's: an answer cannot be begun for the model. End with "
            "a message of the user.",
            param=f"messages[{len(wire.messages) - 1}].role",
        )
    with naming(NAMES):
        return of_another(
            "messages",
            wire,
            (*first, *turns),
            stop=wire.stop_sequences,
            response_format=_format(wire.output_config),
            tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(wire.tools or ())],
            tool_choice=_choice(wire.tool_choice),
            parallel_tool_calls=_parallel(wire.tool_choice),
        )


def _messages(turn: Turn, param: str) -> Iterator[Message]:
    """The messages of one turn: what tools returned are messages of their own."""
    if isinstance(turn.content, str):
        yield Message(turn.role, turn.content)
        return
    blocks = [(block, f"{param}.content[{i}]") for i, block in enumerate(turn.content)]
    if turn.role == "assistant":
        texts = [_block_text(block, at) for block, at in blocks if block.type != "tool_use"]
        calls = tuple(_call(block, at) for block, at in blocks if block.type == "tool_use")
        yield Message("assistant", "\n".join(texts) if texts else None, tool_calls=calls)
        return
    said: list[str] = []
    for block, at in blocks:
        if block.type == "tool_result" and turn.role == "user":
            if said:
                yield Message(turn.role, "\n".join(said))
                said = []
            yield _result(block, at)
        else:
            said.append(_block_text(block, at))
    if said or not blocks:
        yield Message(turn.role, "\n".join(said))


def _block_text(block: Block | TextBlock, param: str) -> str:
    if block.type != "text":
        raise unsupported_content(block.type, param)
    return str(_needed(block.text, param, "text"))


def _text(content: str | Sequence[TextBlock], param: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block, f"{param}[{i}]") for i, block in enumerate(content))


def _result(block: Block, param: str) -> Message:
    content = _text(block.content or "", f"{param}.content")
    return Message("tool", content, tool_call_id=_needed(block.tool_use_id, param, "tool_use_id"))


def _call(block: Block, param: str) -> ToolCall:
    given = _needed(block.input, param, "input")
    return ToolCall(
        _needed(block.name, param, "name"),
        msgspec.json.encode(given).decode(),
        _needed(block.id, param, "id"),
    )


def _needed(value: Any, param: str, field: str) -> Any:
    if value is None:
        raise InvalidRequest(
            f"A block of this type needs the field {field!r}.",
            param=f"{param}.{field}",
            code="missing_required_parameter",
        )
    return value


def _format(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None:
        return None
    if config.effort is not None:
        raise UnsupportedParameter(
            "'output_config.effort' is not supported; leave it out.", param="output_config.effort"
        )
    if config.format is None:
        return None
    return ResponseFormat("json_schema", JsonSchema(SCHEMA_NAME, config.format.schema))


def _tool(tool: ToolDefinition, param: str) -> ChatTool:
    if tool.type not in (None, "custom"):
        return ChatTool(tool.type)
    parameters = _needed(tool.input_schema, param, "input_schema")
    return ChatTool("function", ToolFunction(tool.name, tool.description, parameters, tool.strict))


def _choice(choice: ToolChoice | None) -> str | NamedTool | None:
    if choice is None:
        return None
    if choice.type == "tool":
        return NamedTool("function", NamedFunction(_needed(choice.name, "tool_choice", "name")))
    return "required" if choice.type == "any" else choice.type


def _parallel(choice: ToolChoice | None) -> bool | None:
    """Only what is said: a demanded call is one, whether or not more would be welcome."""
    return False if choice is not None and choice.disable_parallel_tool_use else None
