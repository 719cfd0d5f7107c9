"""Means of differences that come in clusters, such as prompts, with their intervals and equivalence.

Answers to one prompt resemble each other, so that it is prompts that count, not answers: each
prompt's own mean is one observation (the summary-measures analysis of Donner and Klar, Design and
Analysis of Cluster Randomization Trials, 2000).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gateway.experiments.statistics import student

ALPHA = 0.05


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over clusters, with its two-sided 95 % interval; no bounds with fewer than two clusters."""

    mean: float
    low: float | None
    high: float | None
    clusters: int


class Equivalence(msgspec.Struct, frozen=True, kw_only=True):
    """Two one-sided tests."""

    margin: float
    p: float | None
    """None where fewer than two clusters, or no variation among them, leave nothing to go by."""
    equivalent: bool


def interval(values: Sequence[float], *, alpha: float = ALPHA) -> Interval | None:
    """Student's interval of the mean: mean ± t(1 - alpha/2; n - 1) · s / sqrt(n). None of nothing.

    "Student", The probable error of a mean, Biometrika 6 (1908). Holds about where the clusters' means
    are about normal, which is to be doubted of fewer than ten.
    """
    if not values:
        return None
    mean, error = _mean_and_error(values)
    if error is None:
        return Interval(mean=mean, low=None, high=None, clusters=len(values))
    radius = student.quantile(1 - alpha / 2, len(values) - 1) * error
    return Interval(mean=mean, low=mean - radius, high=mean + radius, clusters=len(values))


def equivalence(values: Sequence[float], margin: float, *, alpha: float = ALPHA) -> Equivalence:
    """Whether the mean is shown to be within ±``margin``: the larger p-value of two one-sided t-tests.

    Schuirmann, A comparison of the two one-sided tests procedure …, Journal of Pharmacokinetics and
    Biopharmaceutics 15 (1987). That nothing is found does not show that there is nothing; this does.
    Raises ValueError for a margin that is not above 0.
    """
    if margin <= 0:
        raise ValueError(f"the margin must be above 0, not {margin}")
    mean, error = _mean_and_error(values) if values else (0.0, None)
    # Values that are all the same, as zeros of a rare thing are, say nothing of how much they vary.
    if not error:
        return Equivalence(margin=margin, p=None, equivalent=False)
    p = max(
        _upper_tail(mean + margin, error, len(values) - 1),
        _upper_tail(margin - mean, error, len(values) - 1),
    )
    return Equivalence(margin=margin, p=p, equivalent=p <= alpha)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and its standard error, which is None of one value."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, math.sqrt(variance / count)


def _upper_tail(difference: float, error: float, degrees: int) -> float:
    """P(T >= difference / error)."""
    return 1.0 - student.cdf(difference / error, degrees)
