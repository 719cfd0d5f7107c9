"""Word pieces: a normalised text as the numbers of known fragments, after a unigram language model.

Knows no vectors and no domains.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers.models import Unigram

UNKNOWN = 0
MARK = "▁"
"""Stands before a word, as in SentencePiece."""
MAX_WORD = 64
"""Characters of a word segmented at once; a longer one is cut, so that time stays linear."""
_CACHE_WORDS = 50_000


class Pieces:
    """A vocabulary of pieces with their log-probabilities; the first is for what nothing else covers."""

    def __init__(self, names: Sequence[str], scores: Sequence[float]) -> None:
        self._model = Unigram(
            list(zip(names, scores, strict=True)), unk_id=UNKNOWN, byte_fallback=False
        )
        # Words repeat, within a text and from text to text. Emptied when full: it is only ever an aid.
        self._known: dict[str, tuple[int, ...]] = {}

    def ids(self, text: str) -> list[int]:
        """The pieces of a normalised text, in order; none when it is empty."""
        found: list[int] = []
        known = self._known
        for word in text.split(" "):
            if word:
                found.extend(known.get(word) or self._segmented(word))
        return found

    def _segmented(self, word: str) -> tuple[int, ...]:
        clean = word.encode("utf-8", "replace").decode("utf-8")
        parts = [MARK + clean[:MAX_WORD]]
        parts += [clean[at : at + MAX_WORD] for at in range(MAX_WORD, len(clean), MAX_WORD)]
        ids = tuple(token.id for part in parts for token in self._model.tokenize(part))
        if len(word) <= MAX_WORD:
            if len(self._known) >= _CACHE_WORDS:
                self._known.clear()
            self._known[word] = ids
        return ids
