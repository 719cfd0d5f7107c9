"""Fits the lexical stage: labelled rows in, a `LinearModel` out. Same rows, same model, bit for bit.

Needs scikit-learn, which running a gateway does not: it is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification import features, linear
from gateway.classification.rows import Row, labels_of
from gateway.classification.synthetic import IS_SENSITIVE, Mixture, mixtures, noise
from gateway.types import DOMAINS

MIN_TEXTS = 6
"""An n-gram counts when at least so many windows have it."""
INVERSE_REGULARISATION = 10.0
TOLERANCE = 0.03


class Samples(msgspec.Struct, frozen=True):
    """Windows to learn from."""

    matrix: Any
    """Their vectors, sparse, shape (samples, columns)."""
    labels: npt.NDArray[np.bool_]
    vote: npt.NDArray[np.float64]
    mixed: npt.NDArray[np.bool_]
    """Which of them the sensitive domains alone learn from."""


def vocabulary_of(rows: Sequence[Row]) -> linear.Vocabulary:
    """Which n-grams count, and how much. Labels have no part in it."""
    return _vocabulary(_windows(rows)[0])


def samples(
    vocabulary: linear.Vocabulary, rows: Sequence[Row], mixture: Mixture, seed: int
) -> Samples:
    """Windows of rows and of made-up ones."""
    shared = [*rows, *noise(mixture, seed)]
    everything = [*shared, *mixtures(rows, mixture, seed)]
    windows, owner = _windows(everything)
    return Samples(
        _matrix(vocabulary, windows),
        labels_of(everything)[owner],
        # A long text has many windows but one vote.
        1.0 / np.bincount(owner)[owner],
        owner >= len(shared),
    )


def fit(
    vocabulary: linear.Vocabulary, parts: Sequence[Samples], tick: Callable[[], None]
) -> linear.LinearModel:
    """Calls ``tick`` after each domain."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    matrix = sparse.vstack([part.matrix for part in parts], format="csr")
    labels = np.concatenate([part.labels for part in parts])
    vote = np.concatenate([part.vote for part in parts])
    mixed = np.concatenate([part.mixed for part in parts])
    weights = np.empty((len(vocabulary.kept), len(DOMAINS)), dtype=np.float32)
    bias = np.empty(len(DOMAINS), dtype=np.float32)
    plain = matrix[~mixed]
    for column, sensitive in enumerate(IS_SENSITIVE):
        used = np.ones(len(mixed), dtype=np.bool_) if sensitive else ~mixed
        fitted = LogisticRegression(
            C=INVERSE_REGULARISATION,
            solver="liblinear",
            class_weight="balanced",
            random_state=0,
            tol=TOLERANCE,
        ).fit(matrix if sensitive else plain, labels[used, column], sample_weight=vote[used])
        weights[:, column] = fitted.coef_[0]
        bias[column] = fitted.intercept_[0]
        tick()
    # Rounded as the file stores it, so that what weighs its scores sees those of inference.
    return linear.LinearModel(vocabulary, weights.astype(np.float16).astype(np.float32), bias)


def _windows(rows: Sequence[Row]) -> tuple[list[str], npt.NDArray[np.int64]]:
    pieces: list[str] = []
    owner: list[int] = []
    for index, row in enumerate(rows):
        text = features.normalise(" ".join(row.texts()))
        for piece in features.windows(text, linear.WINDOW, linear.STEP):
            pieces.append(piece)
            owner.append(index)
    return pieces, np.array(owner, dtype=np.int64)


def _vocabulary(windows: Iterable[str]) -> linear.Vocabulary:
    frequency = np.zeros(features.NUM_BUCKETS, dtype=np.int64)
    count = 0
    for window in windows:
        frequency[np.unique(features.buckets(window))] += 1
        count += 1
    kept = np.flatnonzero(frequency >= MIN_TEXTS)
    idf = np.log((1.0 + count) / (1.0 + frequency[kept])) + 1.0
    return linear.Vocabulary(kept, idf.astype(np.float16).astype(np.float32))


def _matrix(vocabulary: linear.Vocabulary, windows: Sequence[str]) -> Any:
    from scipy import sparse

    vectors = [vocabulary.vector(window) for window in windows]
    ends = np.cumsum([0, *(len(columns) for columns, _ in vectors)])
    columns = np.concatenate([columns for columns, _ in vectors])
    values = np.concatenate([values for _, values in vectors]).astype(np.float64)
    return sparse.csr_matrix((values, columns, ends), shape=(len(windows), len(vocabulary.kept)))
