"""The tools that a request offers, and which of them its answer must call."""

from __future__ import annotations

import msgspec

from gateway.api.schemas import ChatCompletionRequest, NamedTool, ToolDefinition
from gateway.errors import InvalidRequest, UnsupportedParameter, cut
from gateway.types import Tool


def tools_of(wire: ChatCompletionRequest) -> tuple[Tool, ...]:
    """What is offered. Raises InvalidRequest or UnsupportedParameter."""
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(wire.tools or ()))
    names = [tool.name for tool in tools]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"'tools' has two functions called {repeated!r}.", param="tools")
    return tools


def called_of(wire: ChatCompletionRequest, tools: tuple[Tool, ...]) -> tuple[str, ...]:
    """The names of which one must be called; empty where none must.

    Raises InvalidRequest or UnsupportedParameter.
    """
    choice = wire.tool_choice
    names = tuple(tool.name for tool in tools)
    if not names:
        if choice not in (None, "none"):
            raise InvalidRequest("'tool_choice' needs 'tools'.", param="tool_choice")
        return ()
    if choice == "none" or may_call(wire):
        return ()
    if wire.parallel_tool_calls:
        raise UnsupportedParameter(
            "An answer that must call makes one call; leave 'parallel_tool_calls' out or send false.",
            param="parallel_tool_calls",
        )
    if choice == "required":
        return names
    if isinstance(choice, NamedTool):
        return (_named(choice, names),)
    raise InvalidRequest(f"'tool_choice' cannot be {cut(choice or '')!r}.", param="tool_choice")


def may_call(wire: ChatCompletionRequest) -> bool:
    """Whether the model may choose between a call and text."""
    return bool(wire.tools) and wire.tool_choice in (None, "auto")


def _tool(wire: ToolDefinition, param: str) -> Tool:
    if wire.type != "function":
        raise UnsupportedParameter(
            f"A tool of type {cut(wire.type)!r} is not supported; send functions.",
            param=f"{param}.type",
        )
    if wire.function is None:
        raise InvalidRequest(
            "A tool needs the field 'function'.",
            param=f"{param}.function",
            code="missing_required_parameter",
        )
    function = wire.function
    tool = Tool(function.name, function.description or "")
    if function.parameters:
        schema = msgspec.json.encode(function.parameters).decode()
        tool = msgspec.structs.replace(tool, parameters=schema)
    return tool


def _named(choice: NamedTool, names: tuple[str, ...]) -> str:
    if choice.type != "function" or choice.function is None:
        raise UnsupportedParameter(
            "'tool_choice' can name a function: {'type': 'function', 'function': {'name': …}}.",
            param="tool_choice",
        )
    if choice.function.name not in names:
        raise InvalidRequest(
            f"'tool_choice' names {cut(choice.function.name)!r}, which 'tools' does not have.",
            param="tool_choice",
        )
    return choice.function.name
