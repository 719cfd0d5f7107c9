"""The OpenAI wire shapes that requests come in. Lenient on unknown fields, strict on known ones.

It knows what a field may look like; `gateway.api.body` says what is wrong with one that does not.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Stop = Annotated[str, msgspec.Meta(min_length=1)]


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None
    include_steps: bool | None = None
    """Ours: which tokens came out of each decode step."""


class JsonSchema(msgspec.Struct, frozen=True):
    """The schema of a ``response_format``."""

    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """OpenAI's way to constrain an answer."""

    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's way to constrain an answer; one field of it."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


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
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
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


class ToolFunction(msgspec.Struct, frozen=True):
    """A function that the client offers."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, frozen=True):
    """One of ``tools``."""

    type: str
    function: ToolFunction | None = None


class NamedFunction(msgspec.Struct, frozen=True):
    """The function of a ``tool_choice``."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """A ``tool_choice`` that names one function."""

    type: str
    function: NamedFunction | None = None


class ChatCompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    tools: Annotated[list[ToolDefinition], msgspec.Meta(max_length=128)] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of ``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=20)] | None = None
