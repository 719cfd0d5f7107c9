"""Trains a probe on pooled hidden states of labelled prompts, and measures it on sources it has not seen.

Needs scikit-learn and scipy, which running a gateway does not. Knows no model and no files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification.evaluation import average_precision
from gateway.errors import ConfigError, Problem
from gateway.probe import BLOCK, Blocks, Floats
from gateway.types import DOMAINS

PROBED_BY_WINDOW = ("medical", "legal")
"""Judged by their highest window, so that a question in a long prompt is not averaged away."""
OPERATING_POINTS = {"medical": 0.10, "legal": 0.10}
"""The probability at which a domain is acted on; 0.5 for the others."""
FOLDS = 5

Booleans = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]


class Options(msgspec.Struct, frozen=True):
    """What can be tuned about a training run."""

    window: int = 128
    """Tokens; a multiple of `BLOCK`."""
    regularisation: float = 0.1
    """Half the weight of the squared weights against the mean loss of a row."""
    false_alarms: float = 0.02
    """Share of the other rows that may reach a domain's operating point."""
    iterations: int = 150


class Trained(msgspec.Struct, frozen=True):
    """What `gateway.probe.ProbeWeights` holds of arithmetic, and the scores it was calibrated on."""

    projection: Floats
    """[features, domains]."""
    mixing: Floats
    intercept: Floats
    held_out: Floats
    """Probability of each row by a probe that has not seen its source, [rows, domains]."""
    average_precisions: tuple[float, ...]


def train(
    blocks: Sequence[Blocks],
    labels: Booleans,
    sources: Sequence[str],
    *,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Fit on all rows; calibrate on scores by fits without the row's source.

    ``labels`` is [rows, domains]. Raises ConfigError where scipy is missing or a domain has no row.
    """
    chosen = options or Options()
    _require(labels)
    tick = progress or (lambda done, total: None)
    means = np.stack([_mean(row.means, row.sizes) for row in blocks])
    fold_of = source_folds(sources, FOLDS)
    scores = np.zeros((len(blocks), len(DOMAINS)), dtype=np.float32)
    used = sorted(set(fold_of.tolist()))
    for done, fold in enumerate(used):
        outside = fold_of != fold
        projection, _ = _fit(means[outside], labels[outside], chosen)
        for index in np.flatnonzero(~outside).tolist():
            scores[index] = prompt_scores(blocks[index], projection, chosen.window)
        tick(done + 1, len(used) + 1)
    slope, intercept = _calibrate(scores, labels, chosen.false_alarms)
    projection, _ = _fit(means, labels, chosen)
    tick(len(used) + 1, len(used) + 1)
    by_window = np.isin(DOMAINS, PROBED_BY_WINDOW)
    logits = slope * scores + intercept
    return Trained(
        projection=projection,
        mixing=np.stack([np.where(by_window, 0, slope), np.where(by_window, slope, 0)]).astype(
            "f4"
        ),
        intercept=intercept.astype(np.float32),
        held_out=(1 / (1 + np.exp(-np.clip(logits, -30, 30)))).astype(np.float32),
        average_precisions=tuple(
            average_precision(scores[:, column].astype(np.float64), labels[:, column])
            for column in range(len(DOMAINS))
        ),
    )


def prompt_scores(row: Blocks, projection: Floats, window: int) -> Floats:
    """The score of each domain, [domains]: its highest window's, or the mean over the prompt."""
    scores = row.means.astype(np.float32) @ projection
    mean = _mean(scores, row.sizes)
    count = max(1, window // BLOCK)
    if len(scores) <= count:
        return mean
    sums = np.cumsum(np.vstack([np.zeros(scores.shape[1]), scores * row.sizes[:, None]]), axis=0)
    tokens = np.cumsum(np.append(0, row.sizes))
    windows = (sums[count:] - sums[:-count]) / (tokens[count:] - tokens[:-count])[:, None]
    highest = windows.max(axis=0)
    return np.where(np.isin(DOMAINS, PROBED_BY_WINDOW), highest, mean).astype(np.float32)


def source_folds(sources: Sequence[str], count: int) -> npt.NDArray[np.int64]:
    """The fold of each row, whole sources together, the largest first into the emptiest fold.

    Rows of fewer than two sources are dealt out one by one.
    """
    names, inverse, sizes = np.unique(np.array(sources), return_inverse=True, return_counts=True)
    if len(names) < 2:
        return np.arange(len(sources)) % count
    filled, fold = [0] * count, np.zeros(len(names), dtype=np.int64)
    for name in sorted(range(len(names)), key=lambda i: (-sizes[i], names[i])):
        fold[name] = filled.index(min(filled))
        filled[fold[name]] += int(sizes[name])
    return fold[inverse]


def _mean(values: npt.NDArray[np.floating], sizes: npt.NDArray[np.int64]) -> Floats:
    mean: Floats = np.average(values.astype(np.float32), axis=0, weights=sizes).astype(np.float32)
    return mean


def _fit(means: Floats, labels: Booleans, options: Options) -> tuple[Floats, Floats]:
    """Logistic regressions for all domains at once: projection [features, domains] and bias.

    Features are standardised for the fit; the standard deviations go into the projection. Rows with
    and without a domain weigh the same together.
    """
    from scipy.optimize import minimize

    centre, spread = means.mean(axis=0), means.std(axis=0) + 1e-6
    features = (means - centre) / spread
    rows, width = features.shape
    target = labels.astype(np.float32)
    share = np.clip(target.mean(axis=0), 1e-6, 1 - 1e-6)
    weight = np.where(labels, 0.5 / share, 0.5 / (1 - share)).astype(np.float32) / rows

    def loss(flat: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        matrix = flat[:-count].reshape(width, count).astype(np.float32)
        scores = features @ matrix + flat[-count:].astype(np.float32)
        value = (weight * (np.logaddexp(0, scores) - target * scores)).sum()
        value += options.regularisation / 2 * np.square(matrix).sum()
        error = weight * (1 / (1 + np.exp(-scores)) - target)
        slope = features.T @ error + options.regularisation * matrix
        return float(value), np.append(slope.ravel(), error.sum(axis=0)).astype(np.float64)

    count = labels.shape[1]
    start = np.zeros(width * count + count)
    found = minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": options.iterations}
    ).x
    projection = found[:-count].reshape(width, count) / spread[:, None]
    return projection.astype(np.float32), (found[-count:] - centre @ projection).astype(np.float32)


def _calibrate(scores: Floats, labels: Booleans, false_alarms: float) -> tuple[Floats, Floats]:
    """Slope by Platt's method; intercept so that the operating point is reached by as many others."""
    from sklearn.linear_model import LogisticRegression

    slopes, intercepts = [], []
    for column, domain in enumerate(DOMAINS):
        own, positive = scores[:, column], labels[:, column]
        fitted = LogisticRegression(C=1e6, solver="lbfgs").fit(own[:, None], positive)
        slope = max(float(fitted.coef_[0][0]), 1e-3)
        threshold = float(np.quantile(own[~positive], 1 - false_alarms))
        point = OPERATING_POINTS.get(domain, 0.5)
        slopes.append(slope)
        intercepts.append(float(np.log(point / (1 - point))) - slope * threshold)
    return np.array(slopes, dtype=np.float32), np.array(intercepts, dtype=np.float32)


def _require(labels: Booleans) -> None:
    try:
        import scipy  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError:
        hint = "pip install scikit-learn"
        problem = Problem("training needs scikit-learn", path="scikit-learn", hint=hint)
        raise ConfigError([problem]) from None
    counts = labels.sum(axis=0).tolist()
    lacking = [domain for domain, count in zip(DOMAINS, counts, strict=True) if count == 0]
    full = [domain for domain, count in zip(DOMAINS, counts, strict=True) if count == len(labels)]
    if lacking or full:
        what = f"no row of {', '.join(lacking)}" if lacking else f"only rows of {', '.join(full)}"
        raise ConfigError([Problem(what, path="training data", hint="add rows of other kinds")])
