"""What else a text can be read as: disguised words restored, encoded passages decoded.

The plain reading of a text is `features.normalise`; this module gives the second one, which holds only
the passages that differ. Knows nothing of domains, models or scores. Every reading is bounded by the
length of the text.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import functools
import html
import re
import unicodedata
import urllib.parse
from collections.abc import Callable, Iterator

from confusable_homoglyphs import confusables

SEGMENT = 240
"""Characters of a passage that is read again as a whole when one word in it is disguised."""
MIN_ENCODED = 24
"""A run of base64 or hex digits shorter than this is a name or a number."""
MAX_DECODED = 200_000
"""Characters of decoded text kept of one text."""

_HIDDEN = re.compile(
    "[\u00ad\u034f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
_WORD = re.compile(r"[^\W\d_]+")
_LEET_WORD = re.compile(r"(?<![\w@$!|])(?=[a-z@$!|]*\d*[a-z0-9@$!|]*)[a-z0-9@$!|]{4,24}(?![\w@$])")
_LEET_SIGN = re.compile(r"(?<=[a-z])[0134578@$!|]+(?=[a-z])|^[0134578@$](?=[a-z]{3})")
_LEET = str.maketrans("0134578@$!|", "oieastbasil")
_SPACED = re.compile(r"(?<!\w)(?:[^\W\d_][ .\-_*·|/]){2,}[^\W\d_](?!\w)")
_MARKS = re.compile("[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u20d0-\u20ff]+")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|[a-zA-Z]{2,24});")
_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}")
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2}[\w.~+-]{0,40}){3,}")
# Linear in the text: what may be repeated is bounded, or ends where it must.
_BASE64 = re.compile(
    r"(?:[A-Za-z0-9+/]{60,76}\r?\n)+[A-Za-z0-9+/]{1,76}={0,2}"
    rf"|[A-Za-z0-9+/_-]{{{MIN_ENCODED},}}={{0,2}}"
)
_HEX = re.compile(
    r"(?<![0-9A-Za-z])"
    rf"(?:(?:0x|\\x)?[0-9a-fA-F]{{2}}[ :,]{{0,2}}){{{MIN_ENCODED // 2},}}"
    r"(?![0-9A-Za-z])"
)
_ROT13_WORDS = frozenset(
    codecs.encode(word, "rot13")
    for word in "the and for what how can you with that this have from your are not should does".split()
)
_PLAIN_WORDS = frozenset(codecs.encode(word, "rot13") for word in _ROT13_WORDS)


def second_reading(text: str) -> str:
    """The passages of ``text`` that read otherwise without disguise or encoding; empty when none does."""
    folded = _MARKS.sub("", _HIDDEN.sub("", unicodedata.normalize("NFKC", text)))
    passages = list(_decoded(folded))
    unescaped = _unescaped(folded)
    if unescaped != folded:
        passages.append(unescaped[:MAX_DECODED])
    passages.extend(_restored(unescaped.casefold()))
    passages.extend(piece for once in tuple(passages[:4]) for piece in _restored(once.casefold()))
    return "\n".join(passages)


def _restored(text: str) -> Iterator[str]:
    """Segments in which a word is spelt with foreign letters, digits or gaps, with that word restored."""
    latin = sum(1 for word in _WORD.finditer(text[:4000]) if word.group().isascii())
    mostly_latin = 2 * latin >= sum(1 for _ in _WORD.finditer(text[:4000]))
    homoglyphs = functools.partial(_latin, anywhere=mostly_latin)
    for segment in _segments(text):
        plain = segment
        if not segment.isascii():
            plain = _WORD.sub(homoglyphs, plain)
        plain = _LEET_WORD.sub(_letters, plain)
        plain = _SPACED.sub(_joined, plain)
        if plain != segment:
            yield plain


def _segments(text: str) -> Iterator[str]:
    """Pieces of about SEGMENT characters, cut at a gap where there is one."""
    start = 0
    while start < len(text):
        end = start + SEGMENT
        if end < len(text):
            gap = text.find(" ", end, end + 40)
            end = gap if gap >= 0 else end
        yield text[start:end]
        start = end


def _latin(word: re.Match[str], *, anywhere: bool) -> str:
    found = word.group()
    if found.isascii():
        return found
    plain = found.translate(_look_alikes())
    mixed = any(character.isascii() for character in found)
    return plain if plain.isascii() and (mixed or anywhere) else found


def _letters(word: re.Match[str]) -> str:
    found = word.group()
    if found.isalpha() or not _LEET_SIGN.search(found):
        return found
    return found.replace("11", "ll").translate(_LEET)


def _joined(letters: re.Match[str]) -> str:
    return letters.group()[::2]


@functools.cache
def _look_alikes() -> dict[int, str]:
    """Letters of other scripts that look like a Latin one, from Unicode's table of confusables."""
    table: dict[int, str] = {}
    for character, others in confusables.confusables_data.items():
        if len(character) != 1 or character.isascii():
            continue
        for other in others:
            plain = other["c"]
            if len(plain) == 1 and plain.isascii() and plain.isalpha():
                table.setdefault(ord(character), plain.casefold())
    # Folding case comes first, and some capitals look alike where their small letters do not.
    for small, plain in zip("вкмнтһ", "bkmhth", strict=True):
        table.setdefault(ord(small), plain)
    return table


def _unescaped(text: str) -> str:
    if "&" in text and _ENTITY.search(text):
        text = html.unescape(text)
    if "\\" in text:
        text = _ESCAPE.sub(_character, text)
    if "%" in text:
        text = _PERCENT.sub(
            lambda run: urllib.parse.unquote_plus(run.group(), errors="ignore"), text
        )
    return text


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape.group()[2:], 16))


def _decoded(text: str) -> Iterator[str]:
    room = MAX_DECODED
    for pattern, decode in _CODES:
        for run in pattern.finditer(text):
            plain = _text_in(decode(run.group()))
            if plain is not None and room > 0:
                yield plain[:room]
                room -= len(plain)
    words = [word.group() for word in _WORD.finditer(text.casefold())]
    turned = sum(word in _ROT13_WORDS for word in words)
    if turned >= 2 and turned > sum(word in _PLAIN_WORDS for word in words):
        yield codecs.encode(text[:room], "rot13")


def _from_base64(run: str) -> bytes:
    digits = "".join(run.split()).rstrip("=").replace("-", "+").replace("_", "/")
    digits = digits[: len(digits) - (len(digits) % 4 == 1)]
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4))
    except (binascii.Error, ValueError):
        return b""


def _from_hex(run: str) -> bytes:
    digits = re.sub(r"0x|\\x|[^0-9a-fA-F]", "", run)
    return bytes.fromhex(digits[: len(digits) // 2 * 2])


_CODES: tuple[tuple[re.Pattern[str], Callable[[str], bytes]], ...] = (
    (_BASE64, _from_base64),
    (_HEX, _from_hex),
)


def _text_in(data: bytes) -> str | None:
    """The text that some bytes are, or None when they are no text."""
    if len(data) < 12:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    letters = sum(character.isalpha() or character.isspace() for character in text)
    return text if letters >= 0.7 * len(text) and any(map(str.isspace, text)) else None
