"""The ``when`` of a rule as people write it: a struct per YAML mapping, checked on its own.

Knows nothing of requests, modes, nor of what a rule does when it holds.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, tzinfo
from typing import Annotated, Literal

import msgspec
import re2

from gateway.documents import Check, suggestion
from gateway.types import DOMAINS

MAX_REGEX_SIZE = 50_000
"""In RE2's instructions; a pattern above that can outgrow its memory and take seconds a request."""
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|(24):(00)")


def compile_regex(source: str) -> re2._Regexp:
    """The pattern for RE2, whose matching time is linear in the text. Raises ValueError."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 64 << 20
    try:
        pattern = re2.compile(source, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "not valid"
        hint = "RE2 has no look-around and no back-references"
        raise ValueError(f"bad regex: {reason}", hint) from None
    if pattern.programsize > MAX_REGEX_SIZE:
        hint = "use `keyword` for lists of words, or split it with `any`"
        raise ValueError(f"regex too large: it compiles to {pattern.programsize:,} steps", hint)
    return pattern


def find_timezone(name: str) -> tzinfo:
    """The time zone of that name. Raises ValueError."""
    if name == "UTC":  # must work without a time zone database
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        zones = zoneinfo.available_timezones()
        hint = suggestion(name, zones) if zones else "install the tzdata package"
        if len(hint) > 80:
            hint = "use a name such as Europe/Berlin"
        raise ValueError(f"unknown time zone {name!r}", hint) from None


def minutes(between: str) -> tuple[int, int]:
    """``09:00-17:30`` as minutes since midnight. Raises ValueError."""
    start, _, end = between.partition("-")
    clocks = [_CLOCK.fullmatch(part.strip()) for part in (start, end)]
    if None in clocks:
        raise ValueError(f"not a span of time: {between!r}", 'write "HH:MM-HH:MM"')
    first, last = (
        sum(int(part) * factor for part, factor in zip(clock[0].split(":"), (60, 1), strict=True))
        for clock in clocks
        if clock is not None
    )
    if first == last:
        raise ValueError(f"an empty span of time: {between!r}", "leave `between` out for all day")
    return first, last


def _known_domain(name: str) -> None:
    if name not in DOMAINS:
        raise ValueError(f"unknown domain {name!r}", suggestion(name, DOMAINS))


def _no_blank(word: str) -> None:
    if not word.strip():
        raise ValueError("an empty keyword would match everything", "remove it")


def exactly_one(**given: object) -> None:
    """Raise ValueError unless exactly one of the keys has a value."""
    there = [name for name, value in given.items() if value is not None]
    names = " or ".join(f"`{name}`" for name in given)
    if len(there) != 1:
        found = " and ".join(f"`{name}`" for name in there) or "none"
        raise ValueError(f"needs exactly one of {names}, has {found}")


Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Domain = Annotated[str, Check(_known_domain)]
Regex = Annotated[str, msgspec.Meta(min_length=1), Check(compile_regex)]
Keyword = Annotated[str, Check(_no_blank)]
TimeZone = Annotated[str, Check(find_timezone)]
Between = Annotated[str, Check(minutes)]


class OneOf(msgspec.Struct, frozen=True, kw_only=True):
    """``{is: x}`` or ``{in: [x, y]}``."""

    is_: Text | None = msgspec.field(name="is", default=None)
    in_: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)] | None = msgspec.field(
        name="in", default=None
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

    is_: Domain | None = msgspec.field(name="is", default=None)
    in_: Annotated[tuple[Domain, ...], msgspec.Meta(min_length=1)] | None = msgspec.field(
        name="in", default=None
    )
    min_probability: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None

    def __post_init__(self) -> None:
        exactly_one(**{"is": self.is_, "in": self.in_})

    @property
    def values(self) -> tuple[str, ...]:
        """The domains, whichever way they were written."""
        return (self.is_,) if self.is_ is not None else self.in_ or ()


class HeaderTest(OneOf, frozen=True, kw_only=True):
    """One request header and the values it may have; names ignore case, values do not."""

    name: Text


class CountRange(msgspec.Struct, frozen=True):
    """A number between two bounds, both included."""

    min: Count = 0
    max: Count | None = None

    def __post_init__(self) -> None:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"min {self.min} is above max {self.max}", "swap them")


class TimeTest(msgspec.Struct, frozen=True):
    """A time of day (end excluded; it may pass midnight) and days of the week, in one time zone."""

    between: Between | None = None
    weekdays: (
        Annotated[
            tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...],
            msgspec.Meta(min_length=1),
        ]
        | None
    ) = None
    timezone: TimeZone = "UTC"

    def __post_init__(self) -> None:
        if self.between is None and self.weekdays is None:
            raise ValueError("no time in it", "give `between` or `weekdays`")


class When(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on one request; all that are given must hold."""

    domain: DomainTest | None = None
    language: OneOf | None = None
    has_context: bool | None = None
    stream: bool | None = None
    n: Count | CountRange | None = None
    caller: OneOf | None = None
    team: OneOf | None = None
    model: OneOf | None = None
    min_prompt_tokens: Count | None = None
    max_prompt_tokens: Count | None = None
    has_tools: bool | None = None
    response_format: OneOf | None = None
    header: HeaderTest | None = None
    keyword: Annotated[tuple[Keyword, ...], msgspec.Meta(min_length=1)] | None = None
    regex: Regex | None = None
    time: TimeTest | None = None
    all_: Annotated[tuple[When, ...], msgspec.Meta(min_length=1)] | None = msgspec.field(
        name="all", default=None
    )
    any_: Annotated[tuple[When, ...], msgspec.Meta(min_length=1)] | None = msgspec.field(
        name="any", default=None
    )
    not_: When | None = msgspec.field(name="not", default=None)

    def __post_init__(self) -> None:
        if all(getattr(self, field) is None for field in self.__struct_fields__):
            raise ValueError(
                "no condition in it", "leave `when` out for a rule that always matches"
            )
