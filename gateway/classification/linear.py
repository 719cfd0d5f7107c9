"""The first stage: TF-IDF vectors of hashed n-grams and linear scores.

Knows nothing of requests or messages: it scores windows of normalised text. Needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification import features
from gateway.types import DOMAINS

WINDOW = 1400
"""Characters of normalised text in a window."""
STEP = 1050
"""Characters from the start of one window to the start of the next; the rest overlaps."""

Floats = npt.NDArray[np.float32]
Vector = tuple[npt.NDArray[np.int64], Floats]
"""Columns and their values, each column once."""


class Vocabulary:
    """The buckets that count as features, each with its inverse document frequency."""

    def __init__(self, kept: npt.NDArray[np.int64], idf: Floats) -> None:
        self.kept = kept
        """Buckets in ascending order, shape (columns,)."""
        self.idf = idf
        self._column = np.full(features.NUM_BUCKETS, -1, dtype=np.int32)
        self._column[kept] = np.arange(len(kept), dtype=np.int32)
        self._first_word_column = int(np.searchsorted(kept, features.CHARACTER_BUCKETS))

    def vector(self, window: str) -> Vector:
        """The TF-IDF vector of a window: the character part and the word part each of length one."""
        found = self._column[features.buckets(window)]
        columns, counts = np.unique(found[found >= 0], return_counts=True)
        values = (1.0 + np.log(counts)) * self.idf[columns]
        split = int(np.searchsorted(columns, self._first_word_column))
        for part in (values[:split], values[split:]):
            part /= max(float(np.sqrt(part @ part)), 1e-9)
        return columns.astype(np.int64), values.astype(np.float32)


class LinearModel(msgspec.Struct, frozen=True):
    """One linear score for each domain over a vocabulary."""

    vocabulary: Vocabulary
    weights: Floats
    """Shape (columns, domains)."""
    bias: Floats
    """Shape (domains,)."""

    def scores(self, windows: Sequence[str]) -> Floats:
        """Uncalibrated scores, shape (windows, domains)."""
        rows = np.empty((len(windows), len(DOMAINS)), dtype=np.float32)
        for row, window in zip(rows, windows, strict=True):
            columns, values = self.vocabulary.vector(window)
            row[:] = values @ self.weights[columns] + self.bias
        return rows
