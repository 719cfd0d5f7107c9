from __future__ import annotations

import numpy as np
import pytest

from gateway.classification import weights
from gateway.classification.domain import SHIPPED_WEIGHTS
from gateway.classification.evaluation import average_precision, evaluate, wilson
from gateway.classification.rows import Row

SKLEARN = pytest.importorskip("sklearn.metrics")


def test_wilson_bounds_are_the_textbook_ones() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(19, 20) == pytest.approx((0.7639, 0.9911), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_average_precision_agrees_with_scikit_learn_ties_included(seed: int) -> None:
    rng = np.random.default_rng(seed)
    positive = rng.random(60) < 0.3
    probability = rng.integers(0, 9, 60).astype(np.float32) / 8

    assert average_precision(probability, positive) == pytest.approx(
        SKLEARN.average_precision_score(positive, probability)
    )


def test_without_positive_rows_everything_is_zero_and_nothing_breaks() -> None:
    model, _ = weights.load(SHIPPED_WEIGHTS)

    report = evaluate(model, [Row("hello", ())])

    assert 0.0 == report.macro_f1 == report.top_is_right
    assert all((one.rows, one.f1, one.recall) == (0, 0.0, 0.0) for one in report.domains)
    assert all(
        (one.thresholds[0].recall_low, one.thresholds[0].recall_high) == (0.0, 1.0)
        for one in report.domains
    )
