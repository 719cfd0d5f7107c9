"""`Excerpt`: as much of a text as may be stored, after all masks. Knows nothing of where it is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.masking import Masker

_MARGIN = 4096
"""Characters that are masked beyond what is kept, so that what is cut in two is found whole."""
_SHORT = 7
"""Digits of a number that is too short to mean anybody."""


class MaskFailed(Exception):
    """A mask could not do its work, so nothing may be stored."""


class Excerpt(NamedTuple):
    """What may be stored of one text."""

    text: bytes
    masked: Mapping[str, int]
    """What was taken out → how often."""
    truncated: bool


def of_body(body: bytes, maskers: Sequence[Masker], max_bytes: int) -> Excerpt:
    """Of a JSON body: byte for byte as it came, where nothing was masked and it is not too long.

    Else JSON again, as long as its strings alone make it long. Raises MaskFailed.
    """
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MaskFailed(f"the body is no JSON: {error}") from error
    if maskers and _is_tokens(content):
        raise MaskFailed("a prompt of token ids cannot be masked")
    work = _Work(maskers, max_bytes)
    masked = work.walk(content)
    if masked == content and len(body) <= max_bytes:
        return Excerpt(body, {}, False)
    return _cut(msgspec.json.encode(masked), work, max_bytes)


def of_texts(texts: Sequence[str], maskers: Sequence[Masker], max_bytes: int) -> Excerpt:
    """Of the choices of an answer, as a JSON array. Raises MaskFailed."""
    work = _Work(maskers, max_bytes)
    return _cut(msgspec.json.encode([work.take(text) for text in texts]), work, max_bytes)


def _is_tokens(content: Any) -> bool:
    prompt = content.get("prompt") if isinstance(content, dict) else None
    return isinstance(prompt, list) and any(not isinstance(item, str) for item in prompt)


def _cut(text: bytes, work: _Work, max_bytes: int) -> Excerpt:
    kept = _whole_characters(text[:max_bytes])
    return Excerpt(kept, dict(work.counts), work.truncated or len(kept) < len(text))


def _whole_characters(text: bytes) -> bytes:
    return text.decode("utf-8", "ignore").encode()


class _Work:
    """Masks strings one after the other, until so many bytes are taken."""

    def __init__(self, maskers: Sequence[Masker], max_bytes: int) -> None:
        self._maskers = maskers
        self._left = max_bytes
        self.counts: Counter[str] = Counter()
        self.truncated = False

    def take(self, text: str) -> str:
        """The text masked, and cut where there is no more room."""
        cut = text[: self._left + _MARGIN] if self._left else ""
        masked = self._mask(cut)
        kept = masked.encode("utf-8", "replace")[: self._left].decode("utf-8", "ignore")
        self.truncated |= len(cut) < len(text) or len(kept) < len(masked)
        self._left -= len(kept.encode())
        return kept

    def walk(self, value: Any) -> Any:
        """The same of every string of a JSON value; of long numbers, where a mask finds something."""
        if isinstance(value, str):
            return self.take(value)
        if isinstance(value, list):
            return [self.walk(item) for item in value]
        if isinstance(value, dict):
            return {self._mask(key): self.walk(item) for key, item in value.items()}
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_SHORT:
            masked = self._mask(str(value))
            return value if masked == str(value) else masked
        return value

    def _mask(self, text: str) -> str:
        for masker in self._maskers:
            try:
                text, counts = masker.mask(text)
                self.counts.update(counts)
            except Exception as error:
                raise MaskFailed(f"{type(error).__name__}: {error}") from error
        return text
