"""The arguments of past calls: JSON text that chat templates read as an object. Knows nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

_MAX_DEPTH = 64
"""Templates write objects by recursion, and what is nested deeper they may not survive."""


def parsed(arguments: str) -> Mapping[str, Any] | None:
    """The object that they are; None for anything else, and for what no template should be given."""
    try:
        found = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return None
    return found if isinstance(found, dict) and _is_shallow(found) else None


def hidden_strings(arguments: str) -> list[str]:
    """The keys and texts that the text does not show, as it has escapes in their place.

    Of any JSON value, and of what careless readers take for one: they are read by others too.
    """
    if "\\" not in arguments:
        return []
    try:
        # No key goes lost to a later one of the same name, and no number is too long.
        found = json.loads(arguments, strict=False, object_pairs_hook=list, parse_int=float)
    except (ValueError, RecursionError):
        return []
    return [text for text in _strings(found) if text not in arguments]


def _strings(value: Any) -> list[str]:
    """Every key and text in lists of lists and pairs; half a character is a question mark."""
    found: list[str] = []
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, str):
            found.append(part.encode("utf-8", "replace").decode())
        elif isinstance(part, list | tuple):
            left += reversed(part)
    return found


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        if not level:
            return True
        lists = [part for part in level if isinstance(part, list)]
        dicts = [part for part in level if isinstance(part, dict)]
        level = [inner for part in lists for inner in part]
        level += [inner for part in dicts for inner in part.values()]
    return False
