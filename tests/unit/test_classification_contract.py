from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gateway.classification.contract import Contract, Scores, read_contract
from gateway.classification.intervals import Rate, upper_bound
from gateway.classification.promise import Labelled, Target, choose, promise
from gateway.classification.rows import Corpus
from gateway.errors import ConfigError
from gateway.types import DOMAINS

TODAY = datetime.date(2026, 12, 1)
MEDICAL, LEGAL = DOMAINS.index("medical"), DOMAINS.index("legal")


def labelled(
    medical: list[float], others: list[float], sources: list[str] | None = None
) -> Labelled:
    """Rows of medicine and of nothing, with these probabilities of medicine."""
    scores = np.zeros((len(medical) + len(others), len(DOMAINS)))
    scores[:, MEDICAL] = [*medical, *others]
    labels = np.zeros(scores.shape, dtype=np.bool_)
    labels[: len(medical), MEDICAL] = True
    names = sources or ["a"] * len(scores)
    return Labelled(scores, labels, names, (Corpus("a", "CC0", len(scores)),))


def contract_of(rows: Labelled, bars: dict[str, float], target: Target) -> Contract:
    return promise(rows, bars, target, classifier="domain", classifier_hash="c" * 64, today=TODAY)


def test_the_bar_is_the_score_of_the_first_row_that_may_not_be_missed() -> None:
    # 95 % confidence of 5 %: of 100 rows one may be missed, so that the second smallest is the bar.
    rows = labelled([0.2 + i / 200 for i in range(100)], [0.0] * 10)

    bars = choose(rows, ["medical"], Target(0.05, 0.95))

    assert bars == {"medical": 0.205}
    medical = contract_of(rows, dict(bars), Target(0.05, 0.95)).domains[0]
    assert medical.recall == Rate.of(99, 100)
    assert medical.miss_bound == upper_bound(1, 100, 0.95) < 0.05


def test_equal_scores_are_caught_together() -> None:
    rows = labelled([0.3] * 5 + [0.9] * 95, [])

    assert choose(rows, ["medical"], Target(0.05, 0.95)) == {"medical": 0.3}


def test_a_bar_is_rounded_down_and_never_up() -> None:
    for score in (0.12349, 0.1234, 0.00001239, 0.0123, np.float32(0.1), 1.0, 0.7):
        rows = labelled([float(score)] * 60, [])
        bar = choose(rows, ["medical"], Target(0.05, 0.95))["medical"]

        assert float(score) * 0.95 < bar <= float(score)


def test_the_stated_confidence_holds_over_many_draws() -> None:
    # Over every law: uniform scores stand for all, as the bar is an order statistic.
    rng = np.random.default_rng(5)
    target = Target(0.05, 0.9)

    broken = 0
    for _ in range(400):
        bar = choose(labelled(list(rng.random(150)), []), ["medical"], target)["medical"]
        broken += bar > target.miss_rate + 1e-4

    # The true miss rate of a bar is the bar itself. Allowed: 10 %, in which 400 draws stay below 15 %.
    assert broken / 400 <= 0.15


def test_too_few_rows_are_an_error_that_says_how_many_are_needed_and_what_they_could_show() -> None:
    rows = labelled([0.5] * 100, [])

    with pytest.raises(ConfigError) as caught:
        choose(rows, ["medical", "legal"], Target(0.005, 0.95))

    medical, legal = (str(problem) for problem in caught.value.problems)
    assert "medical has 100 rows; a miss rate of 0.50% at 95% confidence needs 598" in medical
    assert "--miss-rate 0.03" in medical
    assert choose(rows, ["medical"], Target(0.03, 0.95))
    assert "legal has 0 rows" in legal
    assert "--miss-rate" not in legal


def test_rows_that_no_bar_can_catch_are_named() -> None:
    with pytest.raises(ConfigError, match="3 of 60 rows of medical have probability 0"):
        choose(labelled([0.0] * 3 + [0.9] * 57, []), ["medical"], Target(0.05, 0.95))


def test_false_bans_count_rows_of_no_guarded_domain() -> None:
    scores, labels = np.zeros((4, 10)), np.zeros((4, 10), dtype=np.bool_)
    labels[0, MEDICAL] = labels[1, LEGAL] = True
    scores[:, MEDICAL] = [0.9, 0.8, 0.7, 0.0]
    scores[:, LEGAL] = [0.0, 0.9, 0.0, 0.3]
    rows = Labelled(scores, labels, ["a"] * 4, ())

    contract = contract_of(rows, {"medical": 0.5, "legal": 0.2}, Target(0.5, 0.9))

    assert [one.false_bans for one in contract.domains] == [Rate.of(1, 2), Rate.of(1, 2)]
    assert contract.false_bans == Rate.of(2, 2)


def test_the_worst_source_has_rows_enough_to_be_one() -> None:
    sources = ["good"] * 30 + ["bad"] * 20 + ["tiny"] * 2
    rows = labelled([0.9] * 30 + [0.9] * 15 + [0.1] * 5 + [0.0] * 2, [], sources)

    medical = contract_of(rows, {"medical": 0.5}, Target(0.5, 0.9)).domains[0]

    assert (medical.worst_source, medical.worst_recall) == ("bad", Rate.of(15, 20))


def test_given_bars_are_measured_and_may_miss_the_target() -> None:
    rows = labelled([0.05, 0.5, 0.6], [0.2])

    contract = contract_of(rows, {"medical": 0.1}, Target(0.005, 0.95))

    medical = contract.domains[0]
    assert medical.recall == Rate.of(2, 3)
    assert not contract.meets(medical)


def test_a_domain_without_rows_has_no_contract() -> None:
    with pytest.raises(ConfigError, match="no row is legal"):
        contract_of(labelled([0.5], []), {"legal": 0.1}, Target(0.1, 0.9))


def test_a_contract_comes_back_from_its_file(tmp_path: Path) -> None:
    contract = contract_of(labelled([0.5] * 3, [0.1]), {"medical": 0.1}, Target(0.1, 0.9))
    path = tmp_path / "contract.json"
    path.write_bytes(contract.dump())

    assert read_contract(path) == contract
    assert contract.made_on == "2026-12-01"
    assert contract.fits(["d" * 64, "c" * 64])
    assert not contract.fits(["d" * 64])
    assert contract.of("legal") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2, this release reads 1"),
        ({"miss_rate": 0}, "miss_rate"),
        ({"domains": []}, "domains"),
        ({"classifier_hash": None}, "classifier_hash"),
    ],
)
def test_a_contract_that_is_none_is_refused_with_the_fix(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    contract = contract_of(labelled([0.5] * 3, [0.1]), {"medical": 0.1}, Target(0.1, 0.9))
    path = tmp_path / "contract.json"
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(contract), **change}))

    with pytest.raises(ConfigError, match=words) as caught:
        read_contract(path)
    assert "draftgate classifier calibrate" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{}"])
def test_a_file_that_is_no_contract_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "contract.json"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"contract\.json: not a contract"):
        read_contract(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_contract(tmp_path / "none.json")


@pytest.mark.parametrize(
    "values", [[0.0] * 7, [1.0], [0.1, 0.1, 0.9], list(np.linspace(0, 1, 333))]
)
def test_the_cells_hold_every_score_once(values: list[float]) -> None:
    scores = Scores.of(np.array(values))

    assert scores.rows == len(values)
    assert scores.count(np.array(values)) == scores.counts
    assert scores.counts[-1] == 0
    assert scores.count(np.array([2.0]))[-1] == 1
