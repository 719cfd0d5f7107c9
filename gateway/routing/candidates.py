"""Values of a request among which every kind is that some conditions can tell apart.

More than needed does no harm: those that conditions answer alike are put together afterwards.
The plainest comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from gateway.routing.cases import DEFAULT_NOW
from gateway.routing.globs import witnesses
from gateway.routing.values import find_timezone, minutes
from gateway.routing.when import RESPONSE_FORMATS, TimeTest, When

DAYS_OF_ONE_ZONE = 14
DAYS_OF_SEVERAL_ZONES = 366
"""A year has every difference that daylight saving makes between two zones, on every weekday."""
_LANGUAGES = ("und", "en", "de", "fr", "es", "it", "ja", "zh", "ru", "ko", "pt", "ar", "hi", "xx")
_OTHERS = ("anonymous", "somebody-else", "somebody-quite-else")


def candidates(field: str, leaves: Sequence[When]) -> Iterator[Any]:
    """Values for what a field of ``When`` looks at, given all its conditions."""
    yield from _MAKERS[field](leaves)


def _domain(leaves: Sequence[When]) -> Iterator[float]:
    yield 0.0
    yield from sorted(
        {leaf.domain.min_probability or 0.0 for leaf in leaves if leaf.domain is not None}
    )


def _language(leaves: Sequence[When]) -> Iterator[str]:
    named = {value.lower() for leaf in leaves if leaf.language for value in leaf.language.values}
    yield next(code for code in (*_LANGUAGES, *_unnamed(named)) if code not in named)
    yield from sorted(named)


def _names(field: str) -> Callable[[Sequence[When]], Iterator[str | None]]:
    def of(leaves: Sequence[When]) -> Iterator[str | None]:
        named = {value for leaf in leaves for value in getattr(leaf, field).values}
        yield next(name for name in (*_OTHERS, *_unnamed(named)) if name not in named)
        if field == "team":
            yield None
        yield from sorted(named)

    return of


def _unnamed(named: set[str]) -> tuple[str]:
    """A name longer than all of these."""
    return ("x" * (1 + max(map(len, named), default=0)),)


def _response_format(_: Sequence[When]) -> Iterator[str]:
    yield from RESPONSE_FORMATS


def _model(leaves: Sequence[When]) -> Iterator[str]:
    yield "test"
    patterns = {value for leaf in leaves if leaf.model for value in leaf.model.values}
    yield from witnesses(sorted(patterns))


def _header(leaves: Sequence[When]) -> Iterator[str | None]:
    yield None
    yield from sorted({value for leaf in leaves if leaf.header for value in leaf.header.values})


def _flag(_: Sequence[When]) -> Iterator[bool]:
    yield from (False, True)


def _n(leaves: Sequence[When]) -> Iterator[int]:
    bounds: set[int] = set()
    for leaf in leaves:
        if isinstance(leaf.n, int):
            bounds.add(leaf.n)
        elif leaf.n is not None:
            bounds |= {leaf.n.min, leaf.n.min if leaf.n.max is None else leaf.n.max}
    yield from _around(bounds, 1)


def _prompt_tokens(leaves: Sequence[When]) -> Iterator[int]:
    found = {bound for leaf in leaves for bound in (leaf.min_prompt_tokens, leaf.max_prompt_tokens)}
    yield from _around({bound for bound in found if bound is not None}, 0)


def _around(bounds: set[int], least: int) -> Iterator[int]:
    yield least
    yield from sorted(
        {near for bound in bounds for near in (bound - 1, bound, bound + 1) if near > least}
    )


def moments(leaves: Sequence[When], expiries: Collection[date]) -> Iterator[datetime]:
    """Times on every day that conditions and last days tell apart, at every edge of theirs."""
    yield DEFAULT_NOW
    tests = [leaf.time for leaf in leaves if leaf.time is not None]
    zones = {test.timezone for test in tests}
    days = DAYS_OF_SEVERAL_ZONES if len(zones) > 1 else DAYS_OF_ONE_ZONE
    edges = {(test.timezone, edge) for test in tests for edge in _edges(test)}
    if expiries:
        edges.add(("UTC", 0))  # a last day ends in UTC, whatever zones the conditions have
    for day in _days(sorted(expiries), days):
        for zone, minute in sorted(edges):
            local = datetime.combine(day, time(), find_timezone(zone)) + timedelta(minutes=minute)
            yield local.astimezone(UTC)


def _days(expiries: Sequence[date], count: int) -> Iterator[date]:
    """So many days before the first last day, after the last one, and between any two."""
    span = timedelta(count)
    if not expiries:
        starts, ends = [DEFAULT_NOW.date()], [DEFAULT_NOW.date() + span]
    else:
        # A day more at both ends: a local day begins and ends in another one of UTC.
        starts = [expiries[0] - span, *(day - timedelta(1) for day in expiries)]
        ends = [*(day + timedelta(2) for day in expiries), expiries[-1] + span]
    for first, end in zip(starts, ends, strict=True):
        for offset in range(min((end - first).days, count + 2)):
            yield first + timedelta(offset)


def _edges(test: TimeTest) -> set[int]:
    """Minutes of the day at which the answer may change."""
    return {0} | ({edge % 1440 for edge in minutes(test.between)} if test.between else set())


_MAKERS: Mapping[str, Callable[[Sequence[When]], Iterator[Any]]] = {
    "domain": _domain,
    "language": _language,
    "has_context": _flag,
    "stream": _flag,
    "has_tools": _flag,
    "n": _n,
    "caller": _names("caller"),
    "team": _names("team"),
    "model": _model,
    "prompt_tokens": _prompt_tokens,
    "response_format": _response_format,
    "header": _header,
}
