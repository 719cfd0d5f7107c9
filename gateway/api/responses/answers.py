"""The wire shapes that responses go out in, for the API's description of itself."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.api.answers import ChatLogprob

Status = Literal["in_progress", "completed", "incomplete", "failed"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
EventName = Literal[
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "response.completed",
    "response.incomplete",
    "response.failed",
]


class OutputText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a message."""

    type: Literal["output_text"]
    annotations: list[Any]
    logprobs: list[ChatLogprob]
    text: str


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message", tag_field="type"):
    """What the model says."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class FunctionCall(
    msgspec.Struct, frozen=True, kw_only=True, tag="function_call", tag_field="type"
):
    """One call of a function."""

    id: str
    status: ItemStatus
    arguments: str
    call_id: str
    name: str


class InputDetails(msgspec.Struct, frozen=True):
    """What became of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    """What the answer's tokens were for."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(msgspec.Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response was cut short."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``POST /v1/responses`` and of ``GET /v1/responses/{response_id}``."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    background: bool
    completed_at: int | None
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputMessage | FunctionCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, None]
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, str]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, str]


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed response; which fields it has depends on its type."""

    type: EventName
    sequence_number: int
    response: ResponseObject | msgspec.UnsetType = msgspec.UNSET
    output_index: int | msgspec.UnsetType = msgspec.UNSET
    item: OutputMessage | FunctionCall | msgspec.UnsetType = msgspec.UNSET
    item_id: str | msgspec.UnsetType = msgspec.UNSET
    content_index: int | msgspec.UnsetType = msgspec.UNSET
    part: OutputText | msgspec.UnsetType = msgspec.UNSET
    delta: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[ChatLogprob] | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class DeletedResponse(msgspec.Struct, frozen=True):
    """The answer of ``DELETE /v1/responses/{response_id}``."""

    id: str
    object: Literal["response"]
    deleted: bool
