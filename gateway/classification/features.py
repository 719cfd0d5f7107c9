"""Turns text into hashed n-grams, the same way for training and for inference.

Knows no domain and no weights. Buckets are the same on every machine and Python version: they come from
CRC-32 and 64-bit integer arithmetic, never from ``hash()``.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

FEATURES_VERSION = 2
"""Stored in a weights file: raise it whenever one text could give other buckets than before."""

CHARACTER_BUCKETS = 1 << 20
WORD_BUCKETS = 1 << 20
NUM_BUCKETS = CHARACTER_BUCKETS + WORD_BUCKETS
"""Character n-grams take the lower half, words and word pairs the upper half."""

_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")
_SPACE = re.compile(r"[\s\x00-\x1f\x7f]+")
_WORD = re.compile(r"\w+")
_CAMEL = re.compile(r"(?<=[a-z]{2})(?=[A-Z][a-z])")
_IDEOGRAPHS = 0x2E80
"""Above it a script packs a word into one or two characters, so pairs count as well."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINISHER = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)
_TO_BUCKET = np.uint64(64 - 20)

Buckets = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


def normalise(text: str) -> str:
    """Fold case and compatibility forms, drop invisible characters, make every gap one space.

    Identifiers are taken apart, so that ``max_daily_dose`` and ``maxDailyDose`` are three words.
    """
    folded = text if text.isascii() else unicodedata.normalize("NFKC", _INVISIBLE.sub("", text))
    apart = _CAMEL.sub(" ", folded).replace("_", " ")
    return _SPACE.sub(" ", apart.casefold()).strip()


def windows(text: str, size: int, step: int) -> Iterator[str]:
    """Overlapping pieces of ``size`` characters that cover the whole of ``text``; none when it is empty."""
    if len(text) <= size:
        if text:
            yield text
        return
    for start in range(0, len(text) - size, step):
        yield text[start : start + size]
    # The last one ends where the text ends and is as long as the others.
    yield text[-size:]


def buckets(window: str) -> Buckets:
    """The bucket of every n-gram of a normalised window, repeats included, in no promised order."""
    return np.concatenate((_character_buckets(window), _word_buckets(window)))


def _character_buckets(window: str) -> Buckets:
    raw: Any = f" {window} ".encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(raw, dtype="<u4").astype(np.uint64)
    gaps = codes == ord(" ")
    grams = [_ngrams(codes, n)[_within_a_word(gaps, n)] for n in (3, 4, 5)]
    dense = codes >= _IDEOGRAPHS
    if dense.any():
        grams.append(_ngrams(codes, 2)[dense[:-1] & dense[1:]])
    return _fold(np.concatenate(grams))


def _within_a_word(gaps: npt.NDArray[np.bool_], n: int) -> npt.NDArray[np.bool_]:
    """Which runs of ``n`` characters have no gap inside; one at either end marks a word's edge."""
    count = max(len(gaps) - n + 1, 0)
    inside = np.ones(count, dtype=np.bool_)
    for offset in range(1, n - 1):
        inside &= ~gaps[offset : offset + count]
    return inside


def _word_buckets(window: str) -> Buckets:
    words = np.array(
        [zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in _WORD.findall(window)],
        dtype=np.uint64,
    )
    return _fold(np.concatenate([_ngrams(words, n) for n in (1, 2)])) + CHARACTER_BUCKETS


def _ngrams(items: Hashes, n: int) -> Hashes:
    """One hash for each run of ``n`` items; arithmetic wraps at 64 bits on purpose."""
    count = max(len(items) - n + 1, 0)
    hashes = np.full(count, n, dtype=np.uint64)
    for offset in range(n):
        hashes = (hashes ^ items[offset : offset + count]) * _MULTIPLIER
        hashes ^= hashes >> _SHIFT
    return hashes


def _fold(hashes: Hashes) -> Buckets:
    return ((hashes * _FINISHER) >> _TO_BUCKET).astype(np.int64)
