"""The wire shapes that requests of the Responses API come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from gateway.api.schemas import Count, SamplingFields

REFUSED: Mapping[str, Sequence[Any]] = {
    "access_programs": (),
    "background": (False,),
    "background_options": ({},),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "n": (1,),
    "prompt": (),
    "reasoning": ({}, {"effort": "none"}),
    "truncation": ("disabled",),
}
"""Parameter → the values that ask for nothing; besides `gateway.api.unsupported.NEUTRAL`."""

RENAMED: Mapping[str, str] = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
}
"""Fields of chat completions that are called otherwise here."""

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""What ``include`` may ask for. All but the first belong to items that no answer here has."""


class Part(msgspec.Struct, frozen=True):
    """A part of a message's content, or of what a function returned."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, frozen=True):
    """One item of the input: a message, a call, or what the function returned."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class FunctionTool(msgspec.Struct, frozen=True):
    """One of ``tools``."""

    type: str
    name: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenTool(msgspec.Struct, frozen=True):
    """A ``tool_choice`` that names one function."""

    type: str
    name: str | None = None


class TextFormat(msgspec.Struct, frozen=True):
    """What the text must be."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    """How the text is written."""

    format: TextFormat | None = None
    verbosity: str | None = None


Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of ``POST /v1/responses``."""

    input: str | Annotated[list[Item], msgspec.Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: Annotated[list[FunctionTool], msgspec.Meta(max_length=128)] | None = None
    tool_choice: str | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    include: Annotated[list[str], msgspec.Meta(max_length=16)] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: Metadata | None = None

    @property
    def shows_logprobs(self) -> bool:
        """Whether the answer has log-probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())
