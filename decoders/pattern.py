"""Which regular expressions are matched as they are meant, and which the matcher would read otherwise.

The matcher drops an anchor in the middle and takes an unknown escape for its letter, with no more
than a warning; inside a JSON string it lets through what ends the string. Here those are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from decoders.constraints import GrammarError, UnsupportedGrammar

MAX_REPEATS = 10_000
MAX_QUANTIFIERS = 64
"""Stars, pluses, question marks and counts: the time to compile grows with their square, and the
time of each step with their number."""
_TOKEN = re.compile(
    r"""\\x(?P<hex>[0-9A-Fa-f]{2}) | \\u(?P<unicode>[0-9A-Fa-f]{4})
    | \\(?P<set>[dDwWsS]) | \\(?P<control>[nrtfv]) | \\(?P<escaped>[^A-Za-z0-9])
    | (?P<unknown>\\.?) | (?P<group>\(\?(?!:)) | (?P<repeat>\{[0-9,]*\}) | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


def check_pattern(pattern: str, *, in_json: bool = False) -> None:
    """Raise UnsupportedGrammar for what is not matched as written, GrammarError for what is too much.

    ``in_json``: it describes the inside of a JSON string, where quotes, backslashes and control
    characters would have to be escaped; sets such as ``.`` and ``[^a]`` leave them out by themselves.
    """
    inside = negated = False
    quantifiers = 0
    for start, end, kind, character in _tokens(pattern):
        if not inside and (kind == "repeat" or (kind == "plain" and character in "*+?")):
            quantifiers += 1
            _check_repeat(pattern[start:end])
        elif kind == "plain" and not inside and character in "[^$":
            inside = character == "["
            negated = inside and pattern[end : end + 1] == "^"
            if (character == "^" and start > 0) or (character == "$" and end < len(pattern)):
                _refuse(character, start, "an anchor stands at the pattern's start or end only")
        elif kind == "plain" and inside and character == "]":
            inside = False
        elif kind == "plain" and inside and character == "[":
            _refuse(character, start, "write '\\['")
        elif in_json and not negated and _needs_escape(character):
            _refuse(pattern[start:end], start, "JSON would have to escape it")
        negated = negated and inside
    if quantifiers > MAX_QUANTIFIERS:
        raise GrammarError(f"has {quantifiers} quantifiers; the limit is {MAX_QUANTIFIERS}")


def _tokens(pattern: str) -> Iterator[tuple[int, int, str, str]]:
    """Start, end, kind, and the character that is matched where it is one. Raises for the unknown."""
    for match in _TOKEN.finditer(pattern):
        kind = match.lastgroup or ""
        text = match[kind]
        if kind in ("unknown", "group"):
            _refuse(match[0], match.start(), "it is not known here")
        if kind in ("hex", "unicode"):
            text = chr(int(text, 16))
        elif kind == "control":
            text = _CONTROLS[text]
        yield match.start(), match.end(), kind, "" if kind in ("set", "repeat") else text


def _check_repeat(repeat: str) -> None:
    bounds = [int(bound[:9]) for bound in repeat[1:-1].split(",") if bound]
    if any(bound > MAX_REPEATS for bound in bounds):
        raise GrammarError(f"repeats {repeat} times; the limit is {MAX_REPEATS}")


def _needs_escape(character: str) -> bool:
    return character in ('"', "\\") or (bool(character) and character < " ")


def _refuse(what: str, at: int, why: str) -> None:
    raise UnsupportedGrammar(f"has {what!r} at position {at} of a pattern: {why}")
