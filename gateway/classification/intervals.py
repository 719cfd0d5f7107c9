"""How sure a counted share is: Wilson intervals, and exact (Clopper-Pearson) bounds of a binomial share."""

from __future__ import annotations

import math
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

_Z95 = 1.959963984540054
_HALVINGS = 60
"""Of the interval from 0 to 1: more than a float can tell apart."""


class Rate(msgspec.Struct, frozen=True):
    """``hits`` of ``rows``, with the Wilson 95 % interval from ``low`` to ``high``."""

    hits: int
    rows: int
    share: float
    """0.0 where nothing was counted, and the interval is then from 0 to 1."""
    low: float
    high: float

    @classmethod
    def of(cls, hits: int, rows: int) -> Self:
        """The rate of ``hits`` among ``rows``."""
        return cls(hits, rows, hits / rows if rows else 0.0, *wilson(hits, rows))

    @classmethod
    def among(cls, hit: npt.NDArray[np.bool_], rows: npt.NDArray[np.bool_]) -> Self:
        """The rate of what is ``hit`` among ``rows``; both of shape (all rows,)."""
        return cls.of(int((hit & rows).sum()), int(rows.sum()))


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The Wilson 95 % interval of a share; (0, 1) when nothing was counted."""
    if total == 0:
        return 0.0, 1.0
    share, square = hits / total, _Z95**2
    centre = (share + square / (2 * total)) / (1 + square / total)
    spread = _Z95 * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    spread /= 1 + square / total
    return max(centre - spread, 0.0), min(centre + spread, 1.0)


def upper_bound(hits: int, rows: int, confidence: float) -> float:
    """The share that is exceeded with probability 1 - ``confidence`` at most (one-sided, exact).

    Clopper and Pearson, Biometrika 26 (1934): the share at which so few hits have just that
    probability. 1.0 when nothing was counted.
    """
    if hits >= rows:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if at_most(hits, rows, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def lower_bound(hits: int, rows: int, confidence: float) -> float:
    """The share that is fallen short of with probability 1 - ``confidence`` at most."""
    return 1.0 - upper_bound(rows - hits, rows, confidence)


def at_most(hits: int, rows: int, share: float) -> float:
    """P(X <= ``hits``) for X binomial over ``rows`` with this ``share``."""
    if hits < 0:
        return 0.0
    if hits > rows // 2:
        return 1.0 - at_most(rows - hits - 1, rows, 1.0 - share)
    return float(_probabilities(hits, rows, share).sum())


def allowed_misses(rows: int, miss_rate: float, confidence: float) -> int:
    """The most misses of ``rows`` whose `upper_bound` is within ``miss_rate``; -1 when none is."""
    within = np.cumsum(_probabilities(rows, rows, miss_rate)) <= 1 - confidence
    return int(within.sum()) - 1


def rows_needed(miss_rate: float, confidence: float) -> int:
    """Fewer rows cannot show so small a miss rate, even when not one of them is missed."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - miss_rate))


def _probabilities(most: int, rows: int, share: float) -> npt.NDArray[np.float64]:
    """P(X = i) for i from 0 to ``most``, at most ``rows``."""
    if share in (0.0, 1.0):
        return np.where(np.arange(most + 1) == rows * share, 1.0, 0.0)
    # Logarithms: a binomial coefficient of a thousand rows is no float any more.
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, rows + 1)))))
    i = np.arange(most + 1)
    logs = factorials[rows] - factorials[i] - factorials[rows - i]
    logs += i * math.log(share) + (rows - i) * math.log1p(-share)
    probabilities: npt.NDArray[np.float64] = np.exp(logs)
    return probabilities
