"""Masks: what takes personal data out of a text before it is stored. Knows nothing of storage.

Patterns find what has a form. They are no promise: a name, or a number that is written out, has none.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import re2


class Masked(NamedTuple):
    """A text after a mask."""

    text: str
    counts: Mapping[str, int]
    """What was taken out → how often."""


class Masker(Protocol):
    """Takes something out of texts."""

    def mask(self, text: str) -> Masked:
        """The text without it, in time linear in the text; called in a thread of its own.

        Where it raises, the text is not stored.
        """
        ...


class Pattern(NamedTuple):
    """A form that personal data can have."""

    name: str
    source: str
    """For RE2."""
    fits: Callable[[str], int]
    """How many characters of a match are really it; 0: it only looks so."""


def _whole(found: str) -> int:
    return len(found)


def _prefix(found: str, is_one: Callable[[str], bool], least: int) -> int:
    """The longest beginning that ends where a group does and passes the test."""
    compact = "".join(c for c in found if c.isalnum())
    for end in range(len(found), 0, -1):
        if not found[end - 1].isalnum():
            continue
        inside = end < len(found) and found[end].isalnum()
        if not inside and is_one(compact):
            return end
        compact = compact[:-1]
        if len(compact) < least:
            return 0
    return 0


def is_card(digits: str) -> bool:
    """Whether the check digit of a payment card's number is right (Luhn, ISO/IEC 7812)."""
    if len(digits) > 19 or set(digits) == {"0"}:
        return False
    total = 0
    for i, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + i % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def is_iban(compact: str) -> bool:
    """Whether the check digits of an account's number are right (ISO 13616, ISO 7064 mod 97-10)."""
    if not 15 <= len(compact) <= 34:
        return False
    moved = (compact[4:] + compact[:4]).upper()
    return int("".join(str(int(c, 36)) for c in moved)) % 97 == 1


def _address(found: str) -> int:
    if not any(c.isdigit() for c in found):  # a name in C++
        return 0
    # A full stop or colon behind it belongs to the sentence.
    candidate = found.rstrip(".:") if not found.endswith("::") else found
    try:
        ipaddress.ip_address(candidate)
    except ValueError:
        return 0
    return len(candidate)


def _number(found: str) -> int:
    """Seven digits at least; a date or a range of years is none."""
    digits = sum(c.isdigit() for c in found)
    is_date = re.fullmatch(r"\d{4}[-/.]\d{2}[-/.]\d{2}", found)
    return len(found) if digits >= 7 and not is_date else 0


_PART = r"(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
BUILT_IN: Mapping[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        Pattern(
            "secret",
            r"\b(?:sk|pk|rk|gh[opsu]|glpat|xox[abprs])[-_][A-Za-z0-9_\-]{16,}|\bAKIA[0-9A-Z]{16}\b|"
            r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*",
            _whole,
        ),
        Pattern("email", r"[\pL\pN._%+'\-]+@[\pL\pN\-]+(?:\.[\pL\pN\-]+)+", _whole),
        Pattern(
            "iban",
            r"(?i)\b[A-Z]{2}[0-9]{2}(?:[ \-]?[A-Z0-9]{2,4}){2,8}(?:[ \-]?[A-Z0-9]{1,3})?\b",
            partial(_prefix, is_one=is_iban, least=15),
        ),
        Pattern(
            "card",
            r"\b[0-9](?:[ \-]?[0-9]){12,22}\b",
            partial(_prefix, is_one=is_card, least=13),
        ),
        Pattern("ssn", r"\b(?:[0-57]\d{2}|6[0-57-9]\d|66[0-57-9]|8\d{2})-\d{2}-\d{4}\b", _whole),
        Pattern(
            "ip",
            rf"\b{_PART}(?:\.{_PART}){{3}}\b|\b[0-9A-Fa-f]{{1,4}}(?::[0-9A-Fa-f]{{0,4}}){{2,7}}"
            rf"(?:{_PART}(?:\.{_PART}){{3}})?",
            _address,
        ),
        Pattern(
            "phone",
            r"(?:\+|\b00)[1-9][0-9]{0,3}(?:[ ./\-]{0,2}\(?[0-9]{1,6}\)?){1,6}|"
            r"\(?\b0[0-9]{1,5}\)?(?:[ ./\-]{1,3}[0-9]{2,8}){1,5}|"
            r"\(?\b[2-9][0-9]{2}\)?[ .\-]{1,2}[0-9]{3}[ .\-][0-9]{4}\b",
            _number,
        ),
    )
}
"""In the order in which they are looked for: a card's number must not be taken for a telephone's."""


class PatternMasker:
    """Masks what the built-in patterns find, and patterns of one's own: ``[email]``, ``[card]``, …"""

    def __init__(
        self, *, built_in: tuple[str, ...] | None = None, own: dict[str, str] | None = None
    ) -> None:
        """``built_in``: names of built-in patterns; None: all. ``own``: name → RE2 pattern.

        Raises ValueError for an unknown name and for a pattern that RE2 cannot read.
        """
        names = tuple(BUILT_IN) if built_in is None else built_in
        if unknown := [name for name in names if name not in BUILT_IN]:
            raise ValueError(f"unknown pattern {unknown[0]!r}; known: {', '.join(BUILT_IN)}")
        mine = [Pattern(name, source, _whole) for name, source in (own or {}).items()]
        chosen = [*mine, *(pattern for name, pattern in BUILT_IN.items() if name in names)]
        self._patterns = [(pattern, _compiled(pattern)) for pattern in chosen]

    def mask(self, text: str) -> Masked:
        """See `Masker`."""
        counts: Counter[str] = Counter()
        for pattern, compiled in self._patterns:
            text = compiled.sub(partial(_replaced, pattern, counts), text)
        return Masked(text, counts)


def _compiled(pattern: Pattern) -> re2._Regexp:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern.source, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "not valid"
        raise ValueError(f"the pattern {pattern.name!r} is none that RE2 reads: {reason}") from None


def _replaced(pattern: Pattern, counts: Counter[str], match: re2._Match) -> str:
    found = str(match[0])
    length = pattern.fits(found) if found else 0
    if not length:
        return found
    counts[pattern.name] += 1
    return f"[{pattern.name}]{found[length:]}"
