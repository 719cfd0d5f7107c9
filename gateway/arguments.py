"""The arguments of past calls: JSON text that chat templates read as an object. Knows nothing else."""

from __future__ import annotations

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
    return found if isinstance(found, dict) and _strings(found) is not None else None


def hidden_strings(arguments: str) -> list[str]:
    """The keys and texts of the object that the text does not show, as it has escapes in their place."""
    if "\\" not in arguments:
        return []
    return [text for text in _strings(parsed(arguments)) or () if text not in arguments]


def _strings(value: Any) -> list[str] | None:
    """Every key and text in a JSON value; None where it is nested too deep."""
    found: list[str] = []
    level = [value]
    for _ in range(_MAX_DEPTH):
        if not level:
            return found
        found += [part for part in level if isinstance(part, str)]
        lists = [part for part in level if isinstance(part, list)]
        dicts = [part for part in level if isinstance(part, dict)]
        level = [inner for part in lists for inner in part]
        level += [inner for part in dicts for item in part.items() for inner in item]
    return None
