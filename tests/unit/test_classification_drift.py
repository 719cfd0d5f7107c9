from __future__ import annotations

import math

import numpy as np
import pytest

from gateway.classification.contract import Contract
from gateway.classification.drift import (
    MIN_REQUESTS,
    Level,
    ScoreWindow,
    drift,
    ks,
    ks_bound,
    psi,
)
from gateway.classification.promise import Labelled, Target, promise
from gateway.classification.scoring import Probabilities
from gateway.types import DOMAINS, Signal, Signals

MEDICAL = DOMAINS.index("medical")


def scores(medical: Probabilities) -> Probabilities:
    made = np.zeros((len(medical), len(DOMAINS)))
    made[:, MEDICAL] = medical
    return made


def rows(medical: list[float], others: list[float]) -> Labelled:
    labels = np.zeros((len(medical) + len(others), len(DOMAINS)), dtype=np.bool_)
    labels[: len(medical), MEDICAL] = True
    return Labelled(scores(np.array([*medical, *others])), labels, ["a"] * len(labels), ())


@pytest.fixture(scope="module")
def contract() -> Contract:
    even = list(np.linspace(0, 1, 500))
    return promise(
        rows([0.5] * 500, even),
        {"medical": 0.3},
        Target(0.01, 0.95),
        classifier="domain",
        classifier_hash="c" * 64,
    )


NOBODY = rows([], [])


def reading(contract: Contract, medical: Probabilities, labelled: Labelled = NOBODY) -> Level:
    return drift(contract, scores(medical), labelled).level


def calibrated(count: int) -> Probabilities:
    return np.concatenate([np.full(count, 0.5), np.linspace(0, 1, count)])


def test_traffic_like_the_contracts_rows_is_no_alarm(contract: Contract) -> None:
    assert reading(contract, calibrated(300)) is Level.OK


def test_moved_scores_are_an_alarm_and_slightly_moved_ones_to_be_watched(
    contract: Contract,
) -> None:
    assert reading(contract, np.full(400, 0.9)) is Level.ALARM
    slightly = np.concatenate([calibrated(300), np.full(70, 0.95)])
    assert reading(contract, slightly) is Level.WATCH


def test_few_requests_are_no_evidence(contract: Contract) -> None:
    few = drift(contract, scores(np.full(MIN_REQUESTS - 1, 0.9)), NOBODY).domains[0]

    assert (few.level, few.psi, few.ks) == (Level.UNKNOWN, None, None)
    assert reading(contract, np.zeros(0)) is Level.UNKNOWN


def test_feedback_alarms_when_the_misses_cannot_be_an_accident(contract: Contract) -> None:
    traffic = calibrated(300)

    assert reading(contract, traffic, rows([0.9] * 40, [])) is Level.OK
    one_missed = rows([0.9] * 40 + [0.1], [])
    assert reading(contract, traffic, one_missed) is Level.WATCH
    many = drift(contract, scores(traffic), rows([0.9] * 40 + [0.1] * 5, []))
    assert many.level is Level.ALARM
    assert many.domains[0].reasons == ("feedback: 5 of 45 missed, the target is 1.00%",)
    assert many.domains[0].miss_bound > 0.01


def test_feedback_on_false_bans_is_to_be_watched(contract: Contract) -> None:
    # The contract bans 70 % of its other rows; all of these.
    found = drift(contract, scores(calibrated(300)), rows([], [0.9] * 40)).domains[0]

    assert found.level is Level.WATCH
    assert "40 of 40 banned by mistake" in found.reasons[0]


def test_an_alarm_needs_no_requests_beside_its_feedback(contract: Contract) -> None:
    assert reading(contract, np.zeros(0), rows([0.1] * 5, [])) is Level.ALARM


def test_psi_is_the_textbook_one() -> None:
    expected, observed = [100] * 10, [200, 0, *[100] * 8]
    shares = [((e + 0.5) / 1005, (o + 0.5) / 1005) for e, o in zip(expected, observed, strict=True)]

    assert psi(expected, observed) == pytest.approx(
        sum((o - e) * math.log(o / e) for e, o in shares)
    )
    assert psi(expected, expected) == 0.0


def test_psi_merges_cells_so_that_each_has_a_tenth() -> None:
    # Fifty cells of twenty, of which every second one is empty now: merged, nothing has changed.
    assert psi([20] * 50, [0, 40, 0, 40, 20] * 10) == pytest.approx(0.0)


def test_ks_is_the_distance_at_the_edges_and_its_bound_the_textbook_one() -> None:
    stats = pytest.importorskip("scipy.stats")
    left, right = np.repeat([0, 1, 2], [5, 3, 2]), np.repeat([0, 1, 2], [1, 1, 8])

    assert ks([5, 3, 2], [1, 1, 8]) == pytest.approx(stats.ks_2samp(left, right).statistic)
    assert ks_bound(100, 100, 0.05) == pytest.approx(1.358 * math.sqrt(2 / 100), abs=1e-3)


def test_the_window_gives_the_index_of_the_last_requests(contract: Contract) -> None:
    window = ScoreWindow(contract, size=300)

    def add(score: float, **changes: object) -> None:
        signals = Signals(
            items=(Signal("domain", "medical", score, "domain"),),
            classifiers={"domain": "c" * 64},
        )
        window.add(
            Signals(**{**{f: getattr(signals, f) for f in signals.__struct_fields__}, **changes})
        )

    for score in np.full(MIN_REQUESTS, 0.9):
        add(score)
    moved = window.psi()["medical"]
    assert moved > 0.25
    for score in calibrated(150):
        add(score)
    assert window.psi()["medical"] < 0.1 < moved
    for _ in range(300):
        # None of these was scored by the contract's classifier, whole.
        add(0.9, classifiers={"domain": "d" * 64})
        add(0.9, error="late")
        add(0.9, total_tokens=5)
    assert window.psi()["medical"] < 0.1


def test_the_window_says_nothing_of_a_few_requests(contract: Contract) -> None:
    assert math.isnan(ScoreWindow(contract).psi()["medical"])
