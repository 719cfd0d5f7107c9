from __future__ import annotations

import pytest

from gateway.classification.intervals import (
    Rate,
    allowed_misses,
    at_most,
    lower_bound,
    rows_needed,
    upper_bound,
    wilson,
)

CASES = [
    (0, 1),
    (0, 30),
    (1, 30),
    (29, 30),
    (30, 30),
    (3, 598),
    (400, 1000),
    (999, 1000),
    (7, 90000),
]


def test_wilson_bounds_are_the_textbook_ones() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(19, 20) == pytest.approx((0.7639, 0.9911), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_a_rate_of_nothing_knows_nothing() -> None:
    assert Rate.of(0, 0) == Rate(0, 0, 0.0, 0.0, 1.0)
    assert Rate.of(19, 20).share == 0.95


@pytest.mark.parametrize(("hits", "rows"), CASES)
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_exact_bounds_agree_with_scipy(hits: int, rows: int, confidence: float) -> None:
    beta = pytest.importorskip("scipy.stats").beta
    upper = 1.0 if hits == rows else beta.ppf(confidence, hits + 1, rows - hits)
    lower = 0.0 if hits == 0 else beta.ppf(1 - confidence, hits, rows - hits + 1)

    assert upper_bound(hits, rows, confidence) == pytest.approx(upper, rel=1e-7)
    assert lower_bound(hits, rows, confidence) == pytest.approx(lower, rel=1e-7, abs=1e-12)


def test_bounds_of_nothing_say_nothing() -> None:
    assert upper_bound(0, 0, 0.95) == 1.0
    assert lower_bound(0, 0, 0.95) == 0.0


@pytest.mark.parametrize(("hits", "rows"), CASES)
@pytest.mark.parametrize("share", [0.0, 0.003, 0.5, 0.97, 1.0])
def test_the_distribution_agrees_with_scipy(hits: int, rows: int, share: float) -> None:
    binom = pytest.importorskip("scipy.stats").binom

    assert at_most(hits, rows, share) == pytest.approx(binom.cdf(hits, rows, share), abs=1e-9)


@pytest.mark.parametrize("rows", [1, 59, 60, 597, 598, 599, 945, 946, 2000, 20000])
@pytest.mark.parametrize("miss_rate", [0.005, 0.05])
def test_so_many_misses_are_within_the_target_and_one_more_is_not(
    rows: int, miss_rate: float
) -> None:
    misses = allowed_misses(rows, miss_rate, 0.95)

    assert misses == -1 or upper_bound(misses, rows, 0.95) <= miss_rate + 1e-12
    assert upper_bound(misses + 1, rows, 0.95) > miss_rate


def test_how_many_rows_a_target_needs_is_where_the_first_bar_becomes_possible() -> None:
    assert (rows_needed(0.005, 0.95), rows_needed(0.05, 0.95)) == (598, 59)
    for miss_rate in (0.005, 0.05, 0.3):
        needed = rows_needed(miss_rate, 0.95)
        assert allowed_misses(needed, miss_rate, 0.95) == 0
        assert allowed_misses(needed - 1, miss_rate, 0.95) == -1
