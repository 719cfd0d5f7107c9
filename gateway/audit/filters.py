"""`Filters`: which entries of the log are meant, and how people write that down.

The command line and the API read the same words here. Knows nothing of databases.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec

from gateway.errors import InvalidRequest, cut
from gateway.types import FinishReason, Mode

FLAGS: Mapping[str, str] = {
    "attestation_failed": "something ran that was not decided",
    "tightened": "the backend decoded in standard mode against the decision",
    "interrupted": "a crash left it open, and a later start closed it",
    "error": "it failed, or the policy denied it",
    "lossy": "a lossy verifier ran",
    "truncated": "some of the text was not scored",
    "denied": "the policy refused it",
    "feedback": "somebody said what it was about",
    "streamed": "the answer was streamed",
    "open": "it has no outcome yet",
}
VERIFIER_CLASSES = ("exact", "lossy")
MAX_TEXT = 256
"""Characters of one value: the columns that are searched hold no more."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Likely(msgspec.Struct, frozen=True):
    """A domain that is at least so probable, the most probable or not."""

    domain: str
    probability: float


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries are meant: those that meet every filter that is given."""

    since: float | None = None
    """Seconds since the epoch, included."""
    until: float | None = None
    """Seconds since the epoch, excluded."""
    caller: str | None = None
    team: str | None = None
    domain: str | Likely | None = None
    """A text: the most probable domain."""
    mode: Mode | None = None
    """The decided mode."""
    executed: Mode | None = None
    """The mode that ran."""
    rule: str | None = None
    model: str | None = None
    policy: str | None = None
    """The policy's hash, or its beginning."""
    backend: str | None = None
    verifier: str | None = None
    """The class of the verifier that ran: ``exact`` or ``lossy``."""
    finish: FinishReason | None = None
    """How one of the choices ended."""
    flags: tuple[str, ...] = ()
    """Of `FLAGS`; all must hold."""
    text: str | None = None
    """In caller, rule or a note; or the beginning of an id or a digest."""


def parse(pairs: Iterable[tuple[str, str]], *, zone: tzinfo | None = UTC) -> Filters:
    """The filters of these names and values; only ``flag`` may stand more than once.

    ``zone`` is what a time without one is in; None: the machine's. Raises InvalidRequest, whose
    param names the filter.
    """
    found: dict[str, Any] = {}
    flags: list[str] = []
    for name, value in pairs:
        if name == "flag":
            flags += _flags(value)
        elif name not in _PARSERS:
            known = ", ".join((*_PARSERS, "flag"))
            raise InvalidRequest(f"Unknown filter {cut(name)!r}; known: {known}.", param=cut(name))
        elif name in found:
            raise InvalidRequest(f"{name!r} is given twice; give it once.", param=name)
        else:
            found[name] = _PARSERS[name](name, value, zone)
    return Filters(**found, flags=tuple(dict.fromkeys(flags)))


def moment(name: str, value: str, zone: tzinfo | None) -> float:
    """Seconds since the epoch of an age (``90m``), a date or an ISO 8601 time.

    Raises InvalidRequest for the param ``name``.
    """
    number, unit = value[:-1], value[-1:]
    try:
        if unit in _UNITS and number.isascii() and number.isdigit():
            seconds = time.time() - int(number) * _UNITS[unit]
        else:
            when = datetime.fromisoformat(value)
            seconds = when.replace(tzinfo=when.tzinfo or zone).timestamp()
        if math.isfinite(seconds):
            return seconds
    except (ValueError, OverflowError, OSError):
        pass
    raise InvalidRequest(
        f"{name!r} is {cut(value)!r}, which is neither an age like 90m, 12h or 7d "
        "nor a date or time like 2026-01-31 or 2026-01-31T09:00:00+01:00.",
        param=name,
    )


def _text(name: str, value: str, zone: tzinfo | None) -> str:
    if not value or len(value) > MAX_TEXT:
        message = f"{name!r} needs a value of at most {MAX_TEXT} characters; leave it out for all."
        raise InvalidRequest(message, param=name)
    return value


def _domain(name: str, value: str, zone: tzinfo | None) -> str | Likely:
    domain, colon, bar = _text(name, value, zone).partition(":")
    if not colon:
        return domain
    try:
        probability = float(bar)
    except ValueError:
        probability = -1.0
    if not (_NAME.fullmatch(domain) and 0.0 <= probability <= 1.0):
        message = f"{name!r} is {cut(value)!r}; write a domain, or one and its least probability "
        message += "from 0 to 1, like medical:0.3."
        raise InvalidRequest(message, param=name)
    return Likely(domain, probability)


def _one_of(kind: type[Mode] | type[FinishReason]) -> Callable[[str, str, tzinfo | None], Any]:
    def read(name: str, value: str, zone: tzinfo | None) -> Any:
        return kind(_known(name, value, [member.value for member in kind]))

    return read


def _verifier(name: str, value: str, zone: tzinfo | None) -> str:
    return _known(name, value, VERIFIER_CLASSES)


def _policy(name: str, value: str, zone: tzinfo | None) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{4,64}", value):
        message = f"{name!r} is {cut(value)!r}; give at least four digits of the policy's hash."
        raise InvalidRequest(message, param=name)
    return value.lower()


def _flags(value: str) -> list[str]:
    return [_known("flag", flag.strip(), tuple(FLAGS)) for flag in value.split(",")]


def _known(name: str, value: str, known: Iterable[str]) -> str:
    if value not in known:
        message = f"{name!r} is {cut(value)!r}; it may be {', '.join(known)}."
        raise InvalidRequest(message, param=name)
    return value


_PARSERS: Mapping[str, Callable[[str, str, tzinfo | None], Any]] = {
    "since": moment,
    "until": moment,
    "caller": _text,
    "team": _text,
    "domain": _domain,
    "mode": _one_of(Mode),
    "executed": _one_of(Mode),
    "rule": _text,
    "model": _text,
    "policy": _policy,
    "backend": _text,
    "verifier": _verifier,
    "finish": _one_of(FinishReason),
    "text": _text,
}
