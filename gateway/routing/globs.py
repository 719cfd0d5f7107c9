"""`witnesses`: one text for every set of wildcard patterns that a text can match at once.

Found by walking the product of the patterns' automata, so that none is missed. Knows nothing of
policies.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence

MAX_STATES = 20_000
_TOKEN = re.compile(r"\[!?+\]?+[^\]]*+\]|.", re.DOTALL)
_SURROGATES = range(0xD800, 0xE000)

_Positions = frozenset[int]
_State = tuple[_Positions, ...]


class TooManyPatterns(ValueError):
    """The patterns have more states together than can be walked."""


def witnesses(patterns: Sequence[str]) -> Iterator[str]:
    """Shortest texts, not empty, one for each set of patterns that some text matches and no other.

    Patterns are those of `fnmatch`, case-sensitive. Raises TooManyPatterns.
    """
    tokens = [_tokens(pattern) for pattern in patterns]
    letters = _letters(patterns)
    start: _State = tuple(_skip(frozenset((0,)), parts) for parts in tokens)
    seen, found = {start}, set()
    queue = deque([(start, "")])
    while queue:
        state, text = queue.popleft()
        matched = tuple(len(parts) in places for parts, places in zip(tokens, state, strict=True))
        if text and matched not in found:
            found.add(matched)
            yield text
        for letter in letters:
            after = tuple(map(_step, state, tokens, letter * len(tokens)))
            # The empty text is no witness, so its state may have to be met once more.
            if after not in seen or (not text and after == start):
                seen.add(after)
                queue.append((after, text + letter))
        if len(seen) > MAX_STATES:
            raise TooManyPatterns(f"{len(patterns)} wildcard patterns are too many together")


def _tokens(pattern: str) -> list[str]:
    """Its parts: ``*``, ``?``, ``[...]`` and plain characters.

    As for `fnmatch`, a ``]`` that comes first in brackets does not close them, and a ``[`` that
    nothing closes is a plain one.
    """
    return _TOKEN.findall(pattern)


def _letters(patterns: Sequence[str]) -> list[str]:
    """Characters that tell all others apart for these patterns; a plain one that none names first."""
    named = {
        chr(code)
        for pattern in patterns
        for character in pattern
        for code in (ord(character) - 1, ord(character), ord(character) + 1)
        if 0 <= code <= sys.maxunicode and code not in _SURROGATES
    }
    other = next(chr(code) for code in range(ord("x"), 0xD800) if chr(code) not in named)
    return [other, *sorted(named)]


def _skip(places: _Positions, parts: list[str]) -> _Positions:
    """The places, and those behind stars that match nothing."""
    reached = set(places)
    for place in sorted(places):
        while place < len(parts) and parts[place] == "*":
            place += 1
            reached.add(place)
    return frozenset(reached)


def _step(places: _Positions, parts: list[str], letter: str) -> _Positions:
    after = set()
    for place in places:
        if place < len(parts):
            if parts[place] == "*":
                after.add(place)
            elif _matches(parts[place], letter):
                after.add(place + 1)
    return _skip(frozenset(after), parts)


def _matches(part: str, letter: str) -> bool:
    return fnmatch.fnmatchcase(letter, part) if part[0] in "?[" else part == letter
