"""The OpenAI wire shapes that requests come in. Lenient on unknown fields, strict on known ones.

It knows what a field may look like; `gateway.api.body` says what is wrong with one that does not.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Stop = Annotated[str, msgspec.Meta(min_length=1)]


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that both endpoints share. A field that is null counts as absent."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=8)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    max_tokens: Count | None = None
    stop: Stop | Annotated[list[Stop], msgspec.Meta(max_length=4)] | None = None
    stop_token_ids: Annotated[list[TokenId], msgspec.Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=2)] | None = None
    logit_bias: (
        Annotated[
            dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]],
            msgspec.Meta(max_length=1024),
        ]
        | None
    ) = None


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    """The text of a call that the assistant made earlier."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the assistant made earlier."""

    id: str | None = None
    function: FunctionCall | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    """How calls were written before ``tool_calls``."""


class ChatCompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of ``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=20)] | None = None
