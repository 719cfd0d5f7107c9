"""Trains the domain classifier: labelled rows in, a `LinearModel` out. Same rows, same model, bit for bit.

Needs scikit-learn, which running a gateway does not: it is imported where it is used. Knows no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification import features, linear
from gateway.classification.domain import conversation_scores, last_user_turn
from gateway.classification.rows import Row
from gateway.classification.synthetic import SENSITIVE, Mixture, mixtures, noise
from gateway.errors import ConfigError, Problem
from gateway.types import DOMAINS

MIN_ROWS = 5
"""Rows that every domain needs: one for each fold of the calibration."""

Progress = Callable[[int, int], None]
"""Called with the number of linear fits done and of those to do."""

Booleans = npt.NDArray[np.bool_]


class OperatingPoint(msgspec.Struct, frozen=True):
    """Where a domain's probabilities are used, which fixes the prior they are stated for."""

    probability: float
    target_recall: float | None = None
    """Share of the domain's rows that must reach ``probability``; None: the best F1 must lie there."""


class Options(msgspec.Struct, frozen=True):
    """What can be tuned about a training run."""

    min_texts: int = 6
    """An n-gram counts when at least so many windows have it."""
    inverse_regularisation: float = 20.0
    folds: int = 5
    mixture: Mixture = Mixture()
    seed: int = 7
    medical: OperatingPoint = OperatingPoint(0.10, target_recall=0.96)
    legal: OperatingPoint = OperatingPoint(0.10, target_recall=0.93)
    other: OperatingPoint = OperatingPoint(0.50)

    def operating_point(self, domain: str) -> OperatingPoint:
        """The one for ``domain``."""
        return {"medical": self.medical, "legal": self.legal}.get(domain, self.other)


def train(
    rows: Sequence[Row],
    *,
    calibration: Sequence[Row] = (),
    options: Options | None = None,
    progress: Progress | None = None,
) -> linear.LinearModel:
    """Fit on all rows; calibrate on scores of rows that the scoring model has not seen.

    These are the ``calibration`` rows, best from sources of their own, or without them the rows
    themselves, each scored by a model fitted without its source. Raises ConfigError when scikit-learn
    is missing or a domain has too few rows.
    """
    chosen = options or Options()
    _require(rows, "training data")
    if calibration:
        _require(calibration, "calibration data")
    folds = 0 if calibration else chosen.folds
    tick = _Counter(progress, len(DOMAINS) * (folds + 1))
    model = _fit(rows, chosen, tick)
    if calibration:
        scores, labels = _score(model, calibration), _labels(calibration)
    else:
        scores, labels = _held_out(rows, chosen, tick), _labels(rows)
    slopes, intercepts = zip(
        *(
            _calibrate(scores[:, column], labels[:, column], chosen.operating_point(domain))
            for column, domain in enumerate(DOMAINS)
        ),
        strict=True,
    )
    return msgspec.structs.replace(
        model,
        slope=np.array(slopes, dtype=np.float32),
        intercept=np.array(intercepts, dtype=np.float32),
    )


def _held_out(rows: Sequence[Row], options: Options, tick: Callable[[], None]) -> linear.Floats:
    """Scores of each row from a model fitted without its fold."""
    fold_of = _folds(rows, _labels(rows), options.folds)
    scores = np.zeros((len(rows), len(DOMAINS)), dtype=np.float32)
    for fold in range(options.folds):
        outside = [row for row, at in zip(rows, fold_of, strict=True) if at != fold]
        inside = [row for row, at in zip(rows, fold_of, strict=True) if at == fold]
        scores[fold_of == fold] = _score(_fit(outside, options, tick), inside)
    return scores


def _score(model: linear.LinearModel, rows: Sequence[Row]) -> linear.Floats:
    scores = np.empty((len(rows), len(DOMAINS)), dtype=np.float32)
    for at, row in enumerate(rows):
        texts = [features.normalise(text) for text in row.texts()]
        last = last_user_turn([turn.role for turn in row.messages])
        found = conversation_scores(model, texts, last)
        scores[at] = model.bias if found is None else found
    return scores


class _Counter:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def _require(rows: Sequence[Row], what: str) -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ConfigError(
            [
                Problem(
                    "training needs scikit-learn",
                    path="scikit-learn",
                    hint="pip install scikit-learn",
                )
            ]
        ) from None
    counts = Counter(domain for row in rows for domain in row.domains)
    few = [f"{domain} has {counts[domain]}" for domain in DOMAINS if counts[domain] < MIN_ROWS]
    if few:
        raise ConfigError(
            [
                Problem(
                    f"every domain needs at least {MIN_ROWS} rows: {', '.join(few)}",
                    path=what,
                    hint="add rows of these domains",
                )
            ]
        )


def _labels(rows: Sequence[Row]) -> Booleans:
    return np.array([[domain in row.domains for domain in DOMAINS] for row in rows])


def _folds(rows: Sequence[Row], labels: Booleans, count: int) -> npt.NDArray[np.int64]:
    """The fold of each row: by whole sources where every domain can still be learnt, else row by row.

    A model scored on its own sources looks better than it will be on new traffic.
    """
    sizes = Counter(row.source for row in rows)
    filled = [0] * count
    fold: dict[str, int] = {}
    for source, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        fold[source] = filled.index(min(filled))
        filled[fold[source]] += size
    by_source = np.array([fold[row.source] for row in rows])
    if all(labels[by_source != at].any(axis=0).all() for at in range(count)):
        return by_source
    # Round robin within each set of domains, so that no fold takes all rows of one.
    seen: Counter[frozenset[str]] = Counter()
    by_row = np.empty(len(rows), dtype=np.int64)
    for index, row in enumerate(rows):
        kind = frozenset(row.domains)
        by_row[index] = seen[kind] % count
        seen[kind] += 1
    return by_row


def _fit(rows: Sequence[Row], options: Options, tick: Callable[[], None]) -> linear.LinearModel:
    """A model with neutral calibration (slope 1, intercept 0)."""
    from sklearn.linear_model import LogisticRegression

    shared = [*rows, *noise(options.mixture, options.seed)]
    everything = [*shared, *mixtures(rows, options.mixture, options.seed)]
    windows, owner = _windows(everything)
    num_shared = int(np.searchsorted(owner, len(shared)))
    labels = _labels(everything)[owner]
    # A long text has many windows but one vote.
    vote = 1.0 / np.bincount(owner)[owner]
    vocabulary = _vocabulary(windows, options.min_texts)
    matrix = _matrix(vocabulary, windows)
    weights = np.empty((len(vocabulary.kept), len(DOMAINS)), dtype=np.float32)
    bias = np.empty(len(DOMAINS), dtype=np.float32)
    for column, domain in enumerate(DOMAINS):
        used = slice(None) if domain in SENSITIVE else slice(num_shared)
        fitted = LogisticRegression(
            C=options.inverse_regularisation,
            solver="liblinear",
            class_weight="balanced",
            random_state=0,
        ).fit(matrix[used], labels[used, column], sample_weight=vote[used])
        weights[:, column] = fitted.coef_[0]
        bias[column] = fitted.intercept_[0]
        tick()
    ones = np.ones(len(DOMAINS), dtype=np.float32)
    return linear.LinearModel(vocabulary, weights, bias, ones, ones * 0.0)


def _windows(rows: Sequence[Row]) -> tuple[list[str], npt.NDArray[np.int64]]:
    pieces: list[str] = []
    owner: list[int] = []
    for index, row in enumerate(rows):
        text = features.normalise(" ".join(row.texts()))
        for piece in features.windows(text, linear.WINDOW, linear.STEP):
            pieces.append(piece)
            owner.append(index)
    return pieces, np.array(owner, dtype=np.int64)


def _vocabulary(windows: Iterable[str], min_texts: int) -> linear.Vocabulary:
    frequency = np.zeros(features.NUM_BUCKETS, dtype=np.int64)
    count = 0
    for window in windows:
        frequency[np.unique(features.buckets(window))] += 1
        count += 1
    kept = np.flatnonzero(frequency >= min_texts)
    idf = np.log((1.0 + count) / (1.0 + frequency[kept])) + 1.0
    # Rounded as the file stores it, so that training sees what inference will.
    return linear.Vocabulary(kept, idf.astype(np.float16).astype(np.float32))


def _matrix(vocabulary: linear.Vocabulary, windows: Sequence[str]) -> Any:
    from scipy import sparse

    vectors = [vocabulary.vector(window) for window in windows]
    ends = np.cumsum([0, *(len(columns) for columns, _ in vectors)])
    columns = np.concatenate([columns for columns, _ in vectors])
    values = np.concatenate([values for _, values in vectors]).astype(np.float64)
    return sparse.csr_matrix((values, columns, ends), shape=(len(windows), len(vocabulary.kept)))


def _calibrate(
    scores: linear.Floats, positive: Booleans, point: OperatingPoint
) -> tuple[float, float]:
    """Slope by Platt's method; intercept so that the operating point does what it is there for."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=1e6, solver="lbfgs").fit(scores[:, None], positive)
    # A domain that could not be told apart at all must not turn its ranking round.
    slope = max(float(fitted.coef_[0][0]), 1e-3)
    threshold = (
        _best_f1(scores, positive)
        if point.target_recall is None
        else float(np.quantile(scores[positive], 1.0 - point.target_recall))
    )
    logit = float(np.log(point.probability / (1.0 - point.probability)))
    return slope, logit - slope * threshold


def _best_f1(scores: linear.Floats, positive: Booleans) -> float:
    """The score from which on calling a row positive gives the best F1."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order])
    f1 = 2.0 * hits / (np.arange(1, len(scores) + 1) + positive.sum())
    return float(scores[order[int(np.argmax(f1))]])
