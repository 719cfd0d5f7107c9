"""The wire shapes that messages go out in, for the API's description of itself."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.api.messages.errors import MessageErrorObject

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
EventName = Literal[
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
    "error",
]


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text", tag_field="type"):
    """What the model says."""

    text: str


class ToolUse(msgspec.Struct, frozen=True, kw_only=True, tag="tool_use", tag_field="type"):
    """One call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. The prompt's are those that were computed, and those that were there already."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageObject(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``POST /v1/messages``."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Text | ToolUse]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class EventDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What an event adds; which fields it has depends on the event."""

    type: Literal["text_delta", "input_json_delta"] | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    partial_json: str | msgspec.UnsetType = msgspec.UNSET
    stop_reason: StopReason | msgspec.UnsetType = msgspec.UNSET
    stop_sequence: str | msgspec.UnsetType | None = msgspec.UNSET


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed message; which fields it has depends on its type."""

    type: EventName
    message: MessageObject | msgspec.UnsetType = msgspec.UNSET
    index: int | msgspec.UnsetType = msgspec.UNSET
    content_block: Text | ToolUse | msgspec.UnsetType = msgspec.UNSET
    delta: EventDelta | msgspec.UnsetType = msgspec.UNSET
    usage: MessageUsage | msgspec.UnsetType = msgspec.UNSET
    error: MessageErrorObject | msgspec.UnsetType = msgspec.UNSET
    request_id: str | msgspec.UnsetType = msgspec.UNSET


class TokenCount(msgspec.Struct, frozen=True):
    """The answer of ``POST /v1/messages/count_tokens``."""

    input_tokens: int
