"""Confidence sequences: their form, and that they hold at all times at once."""

import math

import numpy as np
import pytest

from gateway.evidence.confidence import interval
from gateway.tally import Moments


def test_without_tokens_nothing_is_known():
    assert interval(Moments(), 0, 0.05) == (-math.inf, math.inf)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0])
def test_an_alpha_that_is_no_probability_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha"):
        interval(Moments(), 1, alpha)


def test_it_stands_around_the_mean_difference():
    low, high = interval(Moments(70.0, 50.0, 25.0), 100, 0.05)

    assert (low + high) / 2 == pytest.approx(0.2)
    assert low < 0.2 < high


def test_more_variance_or_less_alpha_is_wider_and_more_tokens_are_narrower():
    def width(variance, count, alpha):
        low, high = interval(Moments(0.0, 0.0, variance), count, alpha)
        return high - low

    assert width(50, 100, 0.05) > width(25, 100, 0.05)
    assert width(25, 100, 0.01) > width(25, 100, 0.05)
    assert width(2500, 10_000, 0.05) < width(25, 100, 0.05)


def test_a_sum_of_variances_that_rounding_made_negative_is_none():
    assert interval(Moments(0.0, 0.0, -1e-18), 10, 0.05) == interval(Moments(), 10, 0.05)


def misses(chance, believed, alpha=0.05, runs=1000, length=1500):
    """The share of runs of a coin whose interval leaves out 0 at any time."""
    hits = np.random.default_rng(7).random((runs, length)) < chance
    differences = (hits - believed).cumsum(axis=1)
    counts = np.arange(1, length + 1)
    radius = np.array(
        [
            count * interval(Moments(0.0, 0.0, count * believed * (1 - believed)), count, alpha)[1]
            for count in counts.tolist()
        ]
    )
    return float((np.abs(differences) > radius).any(axis=1).mean())


@pytest.mark.parametrize("chance", [0.5, 0.1])
def test_it_holds_at_all_times_at_once(chance):
    assert misses(chance, chance) <= 0.05


def test_it_sees_a_difference():
    assert misses(0.6, 0.5) > 0.95
