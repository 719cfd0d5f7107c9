"""Values that a policy file writes as text and that have to mean something: patterns, zones, hours.

Each raises ValueError with what is wrong and, where it can, how to write it. Knows no struct.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, tzinfo

import re2

from gateway.documents import suggestion

MAX_REGEX_SIZE = 50_000
"""In RE2's instructions; a pattern above that can outgrow its memory and take seconds a request."""
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
