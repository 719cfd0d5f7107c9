"""The cases of a ``_test.yaml`` file as people write them: what is given, and what must come out.

Running them is `testing`'s matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Literal, TypeVar

import msgspec

from gateway.routing.when import Count, Domain, Several, Text, described
from gateway.types import ChatRequest, Message, Mode

S = TypeVar("S", bound=msgspec.Struct)
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]

DEFAULT_NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
"""When a case does not say: a Monday at noon."""


class MessageEntry(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    content: Annotated[str, described("the text of the turn")]
    role: Annotated[str, described("who speaks")] = "user"


class RequestEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a case says of its request; the rest is as plain as can be."""

    messages: Annotated[
        tuple[MessageEntry, ...], described("the conversation", [{"content": "Sort this list."}])
    ] = ()
    prompt: Annotated[str | None, described("a text to complete, instead of `messages`")] = None
    model: Annotated[str, described("the model asked for")] = "test"
    stream: Annotated[bool, described("whether the answer is streamed")] = False
    n: Annotated[Annotated[int, msgspec.Meta(ge=1)], described("choices asked for")] = 1
    has_tools: Annotated[bool, described("whether tools are offered")] = False
    response_format: Annotated[
        str, described("`text`, `json_object`, `json_schema`, `regex`, `choice` or `grammar`")
    ] = "text"
    headers: Annotated[Mapping[str, str], described("request headers", {"X-Team": "red"})] = (
        msgspec.field(default_factory=dict)
    )
    requested_mode: Annotated[Mode | None, described("the caller's wish")] = None
    caller: Annotated[str, described("who asks")] = "anonymous"
    team: Annotated[str | None, described("their team")] = None
    prompt_tokens: Annotated[
        Count | None,
        described("the prompt's length; a token for every four characters if left out"),
    ] = None
    now: Annotated[
        datetime,
        described("when the request comes; a Monday at noon if left out"),
    ] = DEFAULT_NOW

    def __post_init__(self) -> None:
        if self.messages and self.prompt is not None:
            raise ValueError("has both `messages` and `prompt`", "keep one of them")

    def build(self) -> ChatRequest:
        """The request as the gateway knows it."""
        return ChatRequest(
            model=self.model,
            messages=tuple(Message(turn.role, turn.content) for turn in self.messages),
            prompt=self.prompt,
            stream=self.stream,
            n=self.n,
            has_tools=self.has_tools,
            response_format=self.response_format,
            headers={name.lower(): value for name, value in self.headers.items()},
            requested_mode=self.requested_mode,
        )


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """What must come out; what is not given may be anything."""

    mode: Annotated[Mode, described("how it is decoded")]
    rule: Annotated[Text, described("the rule that the decision bears, or `default`, …")]
    bans: Annotated[tuple[Mode, ...] | None, described("all modes that are banned")] = None
    deny: Annotated[str | None, described("the message of the refusal")] = None
    draft_source: Annotated[str | None, described("`none` for no draft")] = None
    standard_first: Annotated[int | None, described("tokens before the first draft")] = None
    max_entropy: Annotated[float | None, described("of the entropy gate, in nats")] = None
    verifier: Annotated[str | None, described("the verifier")] = None
    backend: Annotated[str | None, described("where it is sent; `none` for wherever it came")] = (
        None
    )
    temperature: Annotated[
        float | Literal["none"] | None, described("the fixed temperature, or `none`")
    ] = None
    max_temperature: Annotated[
        float | Literal["none"] | None, described("the cap on the temperature, or `none`")
    ] = None
    max_tokens: Annotated[
        int | Literal["none"] | None, described("the cap on the length, or `none`")
    ] = None


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request. Without ``signals``, its text is classified."""

    signals: Annotated[
        Mapping[Domain, Probability] | None,
        described("domain probabilities; those not named are 0", {"code": 0.9}),
    ] = None
    language: Annotated[str | None, described("the language signal; `und` for unknown")] = None
    has_context: Annotated[bool | None, described("the signal that it carries its source")] = None
    classifier_error: Annotated[str | None, described("as if a classifier had failed")] = None
    truncated: Annotated[bool, described("as if some text had not been scored")] = False
    request: Annotated[RequestEntry, described("what is asked", {"stream": True})] = RequestEntry()


class Case(Given, frozen=True, kw_only=True):
    """One case: what is given, beside or over its fixture, and what must come out."""

    written_first: ClassVar[tuple[str, ...]] = ("name", "fixture")
    name: Annotated[Text, described("unique; says what must be so")]
    fixture: Annotated[Text | None, described("a fixture to start from")] = None
    expect: Annotated[
        Expectation, described("what must come out", {"mode": "standard", "rule": "medical"})
    ]

    def over(self, fixture: Given) -> Case:
        """The case with the fixture below it: what the case says wins, key by key."""
        request = _over(self.request, fixture.request)
        merged = _over(self, fixture)
        signals = {**(fixture.signals or {}), **(self.signals or {})}
        there = fixture.signals is not None or self.signals is not None
        return msgspec.structs.replace(merged, request=request, signals=signals if there else None)


class CaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file of cases."""

    fixtures: Annotated[
        Mapping[str, Given], described("what several cases start from, by name")
    ] = msgspec.field(default_factory=dict)
    cases: Annotated[Annotated[tuple[Case, ...], Several], described("what the policy must decide")]


def _over(top: S, below: msgspec.Struct) -> S:
    """``top`` with those fields of ``below`` that it leaves at their default."""
    fields = {field.name: field for field in msgspec.structs.fields(top)}
    given = {
        name: getattr(below, name)
        for name in below.__struct_fields__
        if getattr(top, name) == _default(fields[name])
    }
    return msgspec.structs.replace(top, **given)


def _default(field: msgspec.structs.FieldInfo) -> object:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()
