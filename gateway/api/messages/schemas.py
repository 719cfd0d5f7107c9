"""The wire shapes that requests of the Messages API come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from gateway.api.schemas import Count, SamplingFields, Stop

REFUSED: Mapping[str, Sequence[Any]] = {
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
    "n": (1,),
    "speed": ("standard",),
}
"""Parameter → the values that ask for nothing; besides `gateway.api.unsupported.NEUTRAL`."""

RENAMED: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
"""Fields of chat completions that are called otherwise here."""


class TextBlock(msgspec.Struct, frozen=True):
    """A block that can only be text: of a system prompt, or of what a tool returned."""

    type: str
    text: str | None = None


class Block(msgspec.Struct, frozen=True):
    """A block of a message."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[TextBlock] | None = None


class Turn(msgspec.Struct, frozen=True):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolDefinition(msgspec.Struct, frozen=True):
    """One of ``tools``."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether a tool must be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """What the answer must be."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """How the answer is written."""

    format: OutputFormat | None = None
    effort: str | None = None


class MessagesFields(SamplingFields, frozen=True, kw_only=True):
    """What both routes read."""

    messages: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    stop_sequences: Annotated[list[Stop], msgspec.Meta(max_length=16)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    tools: Annotated[list[ToolDefinition], msgspec.Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None


class CountTokensRequest(MessagesFields, frozen=True, kw_only=True):
    """The body of ``POST /v1/messages/count_tokens``."""


class MessagesRequest(MessagesFields, frozen=True, kw_only=True):
    """The body of ``POST /v1/messages``."""

    max_tokens: Count
