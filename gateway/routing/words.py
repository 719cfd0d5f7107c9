"""Finds words in text of any script. Knows nothing of policies."""

from __future__ import annotations

import unicodedata

UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR")
"""How Unicode names the letters of scripts written without spaces, or (Hangul) with particles
joined on: there, a word has no edges to look for."""


_INVISIBLE = dict.fromkeys((0x00AD, 0x200B, 0x2060, 0xFEFF))
"""Characters that nobody sees and that join or part nothing in the scripts that are written with
them; the zero-width joiners stay, for they change what a word is."""


def fold(text: str) -> str:
    """The text without differences of case, width, composition or white space, nor characters
    that nobody sees."""
    text = text.translate(_INVISIBLE)
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


def has_word(text: str, word: str) -> bool:
    """Whether the text has the word with a word's edge on both sides, where its script has edges."""
    before, after = joins(word[0]), joins(word[-1])
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        inside = before and start > 0 and joins(text[start - 1])
        inside = inside or (after and end < len(text) and joins(text[end]))
        if not inside:
            return True
        start = text.find(word, start + 1)
    return False


def joins(character: str) -> bool:
    """Whether the character belongs to one word with a letter beside it."""
    if character.isascii():
        return character.isalnum() or character == "_"
    if unicodedata.category(character)[0] not in "LMN":
        return False
    return not unicodedata.name(character, "").startswith(UNSPACED)
