"""Messages as chat templates read them: what `gateway.types.Message.text` holds, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.arguments import parsed
from gateway.types import Message, ToolCall


def turns_of(messages: Sequence[Message], *, as_text: bool = False) -> list[Mapping[str, Any]]:
    """The turns of a conversation.

    The arguments of past calls are objects, where they are JSON objects: templates write them as JSON
    themselves, and a text a second time. With ``as_text`` they are the text that was sent.
    """
    return [_turn(message, as_text) for message in messages]


def with_calls_written(turns: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The turns with their calls at the end of their text, for a template that shows text alone."""
    return [{**turn, "content": _written(turn)} if "tool_calls" in turn else turn for turn in turns]


def _written(turn: Mapping[str, Any]) -> str:
    lines = [turn["content"]] if turn["content"] else []
    for call in turn["tool_calls"]:
        name, given = call["function"]["name"], call["function"]["arguments"]
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        shown = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}'
        lines.append(f"<tool_call>{shown}</tool_call>")
    return "\n".join(lines)


def _turn(message: Message, as_text: bool) -> Mapping[str, Any]:
    content = message.refusal if message.content is None else message.content
    # Never None, which templates print or stumble over.
    turn: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": content or "",
    }
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, as_text) for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _call(call: ToolCall, as_text: bool) -> Mapping[str, Any]:
    given = None if as_text else parsed(call.arguments)
    function = {"name": call.name, "arguments": call.arguments if given is None else given}
    return {"id": call.id, "type": "function", "function": function}
