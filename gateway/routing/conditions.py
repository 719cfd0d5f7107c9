"""Turns ``when`` mappings into tests: built once when a policy loads, microseconds a request.

A test answers with whether it holds and with the value it saw. Knows nothing of modes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from gateway.routing.facts import Facts
from gateway.routing.values import compile_regex, find_timezone, minutes
from gateway.routing.when import (
    WEEKDAYS,
    CountRange,
    DomainTest,
    HeaderTest,
    OneOf,
    TimeTest,
    When,
)
from gateway.routing.words import fold, has_word

Verdict = tuple[bool, str]
"""Whether a condition holds, and what settled it."""

TOP_DOMAIN_PROBABILITY = 0.5
"""What the most probable domain needs where a rule gives no ``min_probability``."""

Test = Callable[[Facts], Verdict]


def compile_when(when: When | None) -> Test:
    """One test for a whole ``when``; a rule without one always matches."""
    return _all(tuple(_tests(when))) if when is not None else _always


def signals_read(when: When | None) -> Iterator[str]:
    """The names of the signals that the conditions read."""
    if when is None:
        return
    yield from (
        name for name in ("domain", "language", "has_context") if getattr(when, name) is not None
    )
    for inner in (*(when.all_ or ()), *(when.any_ or ()), when.not_):
        yield from signals_read(inner)


def domains_read(when: When | None) -> Iterator[str]:
    """The domains that the conditions name."""
    if when is None:
        return
    yield from when.domain.values if when.domain is not None else ()
    for inner in (*(when.all_ or ()), *(when.any_ or ()), when.not_):
        yield from domains_read(inner)


def _tests(when: When) -> Iterator[Test]:
    for field in when.__struct_fields__:
        value = getattr(when, field)
        if value is not None:
            yield _MAKERS[field](field, value)


def _always(_: Facts) -> Verdict:
    return True, "always"


def _all(tests: tuple[Test, ...]) -> Test:
    if len(tests) == 1:
        return tests[0]

    def test(facts: Facts) -> Verdict:
        details = ""
        for inner in tests:
            holds, detail = inner(facts)
            if not holds:
                return False, detail
            details = f"{details} and {detail}" if details else detail
        return True, details

    return test


def _any(tests: tuple[Test, ...]) -> Test:
    def test(facts: Facts) -> Verdict:
        details = ""
        for inner in tests:
            holds, detail = inner(facts)
            if holds:
                return True, detail
            details = f"{details}; {detail}" if details else detail
        return False, details

    return test


def _not(inner: Test) -> Test:
    def test(facts: Facts) -> Verdict:
        holds, detail = inner(facts)
        return not holds, f"not ({detail})"

    return test


def _domain(_: str, wanted: DomainTest) -> Test:
    names, floor = wanted.values, wanted.min_probability
    if floor is None:
        return _top_domain(frozenset(names), " or ".join(names))
    name = names[0]
    held, missed = f" >= {floor:g}", f" < {floor:g}"

    def one(facts: Facts) -> Verdict:
        if facts.domains.get(name, 0.0) >= floor:
            return True, facts.shown(name) + held
        return False, facts.shown(name) + missed

    def several(facts: Facts) -> Verdict:
        best, most = name, -1.0
        for each in names:
            score = facts.domains.get(each, 0.0)
            if score > most:
                best, most = each, score
        return most >= floor, facts.shown(best) + (held if most >= floor else missed)

    return one if len(names) == 1 else several


def _top_domain(names: Collection[str], shown: str) -> Test:
    other = f"domain {shown} is not the most probable: "
    held, missed = f" >= {TOP_DOMAIN_PROBABILITY}", f" < {TOP_DOMAIN_PROBABILITY}"

    def test(facts: Facts) -> Verdict:
        top, score = facts.top_domain
        if top not in names:
            return False, other + facts.top_domain_shown
        holds = score >= TOP_DOMAIN_PROBABILITY
        sign = held if holds else missed
        return holds, f"most probable domain {facts.top_domain_shown}{sign}"

    return test


def _language(_: str, wanted: OneOf) -> Test:
    names = frozenset(name.lower() for name in wanted.values)

    def test(facts: Facts) -> Verdict:
        return facts.language in names, f"language {facts.language or 'unknown'}"

    return test


def _has_context(_: str, wanted: bool) -> Test:
    def test(facts: Facts) -> Verdict:
        there = facts.has_context
        return there is wanted, "has_context true" if there else "has_context false"

    return test


def _flag(field: str, wanted: bool) -> Test:
    true, false = f"{field} true", f"{field} false"

    def test(facts: Facts) -> Verdict:
        value = getattr(facts.request, field)
        return value is wanted, true if value else false

    return test


def _n(_: str, wanted: int | CountRange) -> Test:
    low, high = (wanted, wanted) if isinstance(wanted, int) else (wanted.min, wanted.max)

    def test(facts: Facts) -> Verdict:
        n = facts.request.num_answers
        return low <= n and (high is None or n <= high), f"n {n}"

    return test


def _caller(_: str, wanted: OneOf) -> Test:
    names = frozenset(wanted.values)
    return lambda facts: (facts.caller.id in names, f"caller {facts.caller.id}")


def _team(_: str, wanted: OneOf) -> Test:
    names = frozenset(wanted.values)
    return lambda facts: (facts.caller.team in names, facts.team_shown)


def _model(_: str, wanted: OneOf) -> Test:
    match = re.compile("|".join(fnmatch.translate(pattern) for pattern in wanted.values)).match
    return lambda facts: (match(facts.request.model) is not None, facts.model_shown)


def _response_format(_: str, wanted: OneOf) -> Test:
    names = frozenset(wanted.values)
    return lambda facts: (
        facts.request.response_format in names,
        f"response_format {facts.request.response_format}",
    )


def _header(_: str, wanted: HeaderTest) -> Test:
    name, values = wanted.name.lower(), frozenset(wanted.values)

    def test(facts: Facts) -> Verdict:
        value = facts.request.headers.get(name)
        return value in values, f"header {name} {'missing' if value is None else value[:64]}"

    return test


def _min_prompt_tokens(_: str, bound: int) -> Test:
    def test(facts: Facts) -> Verdict:
        holds = facts.prompt_tokens >= bound
        return holds, f"prompt_tokens {facts.prompt_tokens} {'>=' if holds else '<'} {bound}"

    return test


def _max_prompt_tokens(_: str, bound: int) -> Test:
    def test(facts: Facts) -> Verdict:
        holds = facts.prompt_tokens <= bound
        return holds, f"prompt_tokens {facts.prompt_tokens} {'<=' if holds else '>'} {bound}"

    return test


def _keyword(_: str, words: tuple[str, ...]) -> Test:
    # The longest first, so that the trace names the most telling of overlapping keywords.
    folded = sorted({fold(word) for word in words}, key=len, reverse=True)

    def test(facts: Facts) -> Verdict:
        for word in folded:
            if has_word(facts.folded_text, word):
                return True, f"keyword {word[:64]}"
        return False, "no keyword"

    return test


def _regex(_: str, source: str) -> Test:
    pattern = compile_regex(source)

    def test(facts: Facts) -> Verdict:
        found = pattern.search(facts.text) is not None
        return found, f"regex {source[:64]} {'found' if found else 'not found'}"

    return test


def _time(_: str, wanted: TimeTest) -> Test:
    zone = find_timezone(wanted.timezone)
    days = frozenset(wanted.weekdays or WEEKDAYS)
    first, last = minutes(wanted.between) if wanted.between else (0, 24 * 60)
    in_zone = f" {wanted.timezone}"

    def test(facts: Facts) -> Verdict:
        minute, day, clock = facts.local(zone)
        within = first <= minute < last if first < last else minute >= first or minute < last
        return within and day in days, clock + in_zone

    return test


_MAKERS: dict[str, Callable[[str, Any], Test]] = {
    "domain": _domain,
    "language": _language,
    "has_context": _has_context,
    "stream": _flag,
    "has_tools": _flag,
    "n": _n,
    "caller": _caller,
    "team": _team,
    "model": _model,
    "min_prompt_tokens": _min_prompt_tokens,
    "max_prompt_tokens": _max_prompt_tokens,
    "response_format": _response_format,
    "header": _header,
    "keyword": _keyword,
    "regex": _regex,
    "time": _time,
    "all_": lambda _, inner: _all(tuple(_all(tuple(_tests(when))) for when in inner)),
    "any_": lambda _, inner: _any(tuple(_all(tuple(_tests(when))) for when in inner)),
    "not_": lambda _, inner: _not(_all(tuple(_tests(inner)))),
}
