"""The ``when`` of a rule as people write it: a struct per YAML mapping, checked on its own.

The descriptions and examples are what the reference and the JSON Schema say. Knows nothing of
requests, modes, nor of what a rule does when it holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from gateway.documents import Check, suggestion
from gateway.routing.values import compile_regex, find_timezone, minutes
from gateway.routing.words import fold
from gateway.types import DOMAINS

RESPONSE_FORMATS = ("text", "json_object", "json_schema", "regex", "choice", "grammar")
CREDENTIALS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})
"""Headers that conditions never see."""
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def described(text: str, *examples: Any) -> msgspec.Meta:
    """What the reference says of a field, with values it may have."""
    return msgspec.Meta(description=text, examples=list(examples) or None)


def _known_domain(name: str) -> None:
    if name not in DOMAINS:
        raise ValueError(f"unknown domain {name!r}", suggestion(name, DOMAINS))


def _no_blank(word: str) -> None:
    if not fold(word):
        raise ValueError("an empty keyword would match everything", "remove it")


def _known_response_format(kind: str) -> None:
    if kind not in RESPONSE_FORMATS:
        raise ValueError(f"unknown response format {kind!r}", suggestion(kind, RESPONSE_FORMATS))


def _language_code(code: str) -> None:
    if not re.fullmatch(r"[A-Za-z]{2,3}", code):
        hint = "give its ISO 639-1 code, such as de; und is an unknown one"
        raise ValueError(f"{code[:80]!r} is no code of a language", hint)


def _readable_header(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise ValueError(f"{name[:80]!r} cannot be a header's name", "write one such as X-Team")
    if name.lower() in CREDENTIALS:
        hint = "use `caller` or `team`"
        raise ValueError(f"no policy sees the header {name}: it holds credentials", hint)


def exactly_one(**given: object) -> None:
    """Raise ValueError unless exactly one of the keys has a value."""
    there = [name for name, value in given.items() if value is not None]
    names = " or ".join(f"`{name}`" for name in given)
    if len(there) != 1:
        found = " and ".join(f"`{name}`" for name in there) or "none"
        raise ValueError(f"needs exactly one of {names}, has {found}")


Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Domain = Annotated[
    str, Check(_known_domain), msgspec.Meta(extra_json_schema={"enum": list(DOMAINS)})
]
Regex = Annotated[str, msgspec.Meta(min_length=1), Check(compile_regex)]
Keyword = Annotated[str, Check(_no_blank)]
TimeZone = Annotated[str, Check(find_timezone)]
Between = Annotated[str, Check(minutes)]
Header = Annotated[Text, Check(_readable_header)]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
Several = msgspec.Meta(min_length=1)


class OneOf(msgspec.Struct, frozen=True, kw_only=True):
    """``{is: x}`` or ``{in: [x, y]}``."""

    is_: Annotated[Text | None, described("the one value")] = msgspec.field(name="is", default=None)
    in_: Annotated[Annotated[tuple[Text, ...], Several] | None, described("any of these")] = (
        msgspec.field(name="in", default=None)
    )

    def __post_init__(self) -> None:
        exactly_one(**{"is": self.is_, "in": self.in_})

    @property
    def values(self) -> tuple[str, ...]:
        """What may be there, whichever way it was written."""
        return (self.is_,) if self.is_ is not None else self.in_ or ()


class DomainTest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds when any of the domains is at least ``min_probability`` likely.

    Without ``min_probability``: when one of them is the most probable domain, at 0.5 or more.
    """

    is_: Annotated[Domain | None, described("one domain")] = msgspec.field(name="is", default=None)
    in_: Annotated[Annotated[tuple[Domain, ...], Several] | None, described("any of these")] = (
        msgspec.field(name="in", default=None)
    )
    min_probability: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=1)] | None,
        described("holds from this probability on, whichever domain is on top"),
    ] = None

    def __post_init__(self) -> None:
        exactly_one(**{"is": self.is_, "in": self.in_})

    @property
    def values(self) -> tuple[str, ...]:
        """The domains, whichever way they were written."""
        return (self.is_,) if self.is_ is not None else self.in_ or ()


def _each(test: Callable[[str], None]) -> Check:
    """The test for every value of a `OneOf`."""

    def check(one_of: OneOf) -> None:
        for value in one_of.values:
            test(value)

    return Check(check)


class HeaderTest(OneOf, frozen=True, kw_only=True):
    """One request header and the values it may have; names ignore case, values do not."""

    name: Annotated[Header, described("the header's name, in any case")]


class CountRange(msgspec.Struct, frozen=True):
    """A number between two bounds, both included."""

    min: Annotated[Count, described("the least")] = 0
    max: Annotated[Count | None, described("the most; without it there is no upper bound")] = None

    def __post_init__(self) -> None:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"min {self.min} is above max {self.max}", "swap them")


class TimeTest(msgspec.Struct, frozen=True):
    """A time of day (end excluded; it may pass midnight) and days of the week, in one time zone."""

    between: Annotated[
        Between | None,
        described("`HH:MM-HH:MM`; the end is not included, and it may pass midnight"),
    ] = None
    weekdays: Annotated[
        Annotated[tuple[Weekday, ...], Several] | None,
        described("the day that it is then; every day if left out"),
    ] = None
    timezone: Annotated[TimeZone, described("a name such as Europe/Berlin")] = "UTC"

    def __post_init__(self) -> None:
        if self.between is None and self.weekdays is None:
            raise ValueError("no time in it", "give `between` or `weekdays`")


class When(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on one request; all that are given must hold."""

    domain: Annotated[
        DomainTest | None,
        described(
            "that domain, or any of several, is at least so probable, whichever is on top; without "
            "`min_probability`: it is the most probable domain, at 0.5 or more",
            {"is": "medical", "min_probability": 0.1},
            {"in": ["medical", "legal"], "min_probability": 0.1},
            {"is": "code"},
        ),
    ] = None
    language: Annotated[
        Annotated[OneOf, _each(_language_code)] | None,
        described("the most probable language, by ISO 639-1 code", {"is": "de"}),
    ] = None
    has_context: Annotated[
        bool | None,
        described("the request carries its own source: a document or a tool's result", True),
    ] = None
    stream: Annotated[bool | None, described("the answer is streamed", True)] = None
    n: Annotated[
        Count | CountRange | None,
        described(
            "the number of answers decoded: `best_of`, or `n` without it", 1, {"min": 2, "max": 4}
        ),
    ] = None
    caller: Annotated[OneOf | None, described("who asks, by API key", {"is": "ann"})] = None
    team: Annotated[
        OneOf | None, described("the caller's team, by API key", {"in": ["red", "blue"]})
    ] = None
    model: Annotated[
        OneOf | None,
        described(
            "the model asked for; `*`, `?` and `[ab]` are wildcards", {"in": ["small", "llama-*"]}
        ),
    ] = None
    min_prompt_tokens: Annotated[
        Count | None, described("the prompt is this long or longer on its backend", 100)
    ] = None
    max_prompt_tokens: Annotated[
        Count | None, described("the prompt is this long or shorter on its backend", 2000)
    ] = None
    has_tools: Annotated[bool | None, described("the request offers tools", True)] = None
    response_format: Annotated[
        Annotated[OneOf, _each(_known_response_format)] | None,
        described(
            "`text`, `json_object`, `json_schema`, `regex`, `choice` or `grammar`",
            {"is": "json_schema"},
        ),
    ] = None
    header: Annotated[
        HeaderTest | None,
        described("a request header has this value", {"name": "X-Team", "is": "red"}),
    ] = None
    keyword: Annotated[
        Annotated[tuple[Keyword, ...], Several] | None,
        described("one of them is in the text as a word", ["ibuprofen", "blood pressure"]),
    ] = None
    regex: Annotated[
        Regex | None,
        described(
            "the [RE2](https://github.com/google/re2/wiki/Syntax) pattern is found in the text",
            "(?i)icd-?10",
        ),
    ] = None
    time: Annotated[
        TimeTest | None,
        described(
            "when the request came; UTC if no zone is given",
            {"between": "09:00-17:00", "weekdays": ["mon", "fri"], "timezone": "Europe/Berlin"},
        ),
    ] = None
    all_: Annotated[
        Annotated[tuple[When, ...], Several] | None,
        described("all of these hold", [{"stream": True}, {"n": 1}]),
    ] = msgspec.field(name="all", default=None)
    any_: Annotated[
        Annotated[tuple[When, ...], Several] | None,
        described("at least one of these holds", [{"has_tools": True}, {"n": {"min": 2}}]),
    ] = msgspec.field(name="any", default=None)
    not_: Annotated[
        When | None, described("this does not hold", {"language": {"in": ["en", "und"]}})
    ] = msgspec.field(name="not", default=None)

    def __post_init__(self) -> None:
        if all(getattr(self, field) is None for field in self.__struct_fields__):
            raise ValueError(
                "no condition in it", "leave `when` out for a rule that always matches"
            )
