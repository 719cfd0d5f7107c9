"""The OpenAI wire shapes that answers go out in, for the API's description of itself.

Answers are rendered as plain objects, which costs less; the tests hold each to its shape here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

ChatEnding = Literal["stop", "length", "content_filter", "tool_calls"]
TextEnding = Literal["stop", "length", "content_filter"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """What became of the prompt's tokens."""

    cached_tokens: int


class UsageObject(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(msgspec.Struct, frozen=True):
    """One token and its natural-log probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob, frozen=True):
    """A token of the answer, with those that were as likely or likelier."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of one choice."""

    content: list[ChatLogprob]
    refusal: None


class CalledFunction(msgspec.Struct, frozen=True):
    """Which function the model calls, and its arguments as JSON text."""

    name: str
    arguments: str


class CallObject(msgspec.Struct, frozen=True):
    """One call."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(msgspec.Struct, frozen=True):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[CallObject] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer of a chat completion."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatEnding


class ChatCompletion(msgspec.Struct, frozen=True):
    """The answer of ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject
    system_fingerprint: str


class FunctionDelta(msgspec.Struct, frozen=True):
    """A piece of a call: the name first, then the arguments bit by bit."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of the call number ``index``; id and type come with the first."""

    index: int
    function: FunctionDelta
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    refusal: msgspec.UnsetType | None = msgspec.UNSET
    tool_calls: list[CallDelta] | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """What a chunk adds to one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ChatEnding | None


class StepsObject(msgspec.Struct, frozen=True):
    """How the tokens of an event came about."""

    steps: list[Annotated[list[int], msgspec.Meta(min_length=3, max_length=3)]]
    """Of each decode step: tokens emitted, draft tokens proposed, and accepted, which come first."""


class ChatCompletionChunk(msgspec.Struct, frozen=True):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: UsageObject | msgspec.UnsetType | None = msgspec.UNSET
    draftgate: StepsObject | msgspec.UnsetType = msgspec.UNSET
    """Where ``stream_options.include_steps`` asks for it."""


class TextLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of one text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct, frozen=True):
    """One text; in a stream, a piece of it."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: TextEnding | None


class Completion(msgspec.Struct, frozen=True):
    """The answer of ``POST /v1/completions``, and each event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str
    usage: UsageObject | msgspec.UnsetType | None = msgspec.UNSET
    draftgate: StepsObject | msgspec.UnsetType = msgspec.UNSET
    """In a stream, where ``stream_options.include_steps`` asks for it."""
