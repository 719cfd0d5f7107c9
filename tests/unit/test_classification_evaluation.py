from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gateway.classification.base import Reading
from gateway.classification.domain import DomainClassifier
from gateway.classification.evaluation import average_precision, evaluate
from gateway.classification.intervals import Rate
from gateway.classification.rows import Corpus, Row, Turn, corpora
from gateway.classification.scoring import (
    Probabilities,
    read_probabilities,
    score_all,
    score_with,
)
from gateway.errors import ConfigError
from gateway.types import DOMAINS, ChatRequest, Signal

BARS = {"medical": 0.1, "legal": 0.1, "creative_writing": 0.5}
GUARDED = ("medical", "legal")


def probabilities(*rows: dict[str, float]) -> Probabilities:
    return np.array([[row.get(domain, 0.0) for domain in DOMAINS] for row in rows])


ROWS = (
    Row("dose", ("medical",), source="a", lang="en", slice="plain"),
    Row("law", ("legal",), source="a", lang="de"),
    Row("a doctor in a novel", ("creative_writing",), source="b", lang="en", slice="near-miss"),
    Row("sort", ("code",), source="b", lang="en"),
    Row("buried dose", ("medical", "code"), source="b", lang="en", id="x7"),
    Row("hm", (), source=""),
)
SCORES = probabilities(
    {"medical": 0.9},
    {"legal": 0.05, "medical": 0.2},
    {"medical": 0.3, "creative_writing": 0.6},
    {"code": 0.8},
    {"code": 0.7, "medical": 0.02},
    {"general_chat": 0.4},
)


def test_the_guard_takes_a_row_of_one_domain_that_reaches_the_bar_of_the_other() -> None:
    report = evaluate(ROWS, SCORES, thresholds=BARS, guarded=GUARDED)

    assert report.guard.recall == Rate.of(2, 3)
    assert report.guard.false_bans == Rate.of(1, 3)
    medical, legal = report.domains[:2]
    assert (medical.recall, medical.precision) == (Rate.of(1, 2), Rate.of(1, 3))
    assert (medical.false_alarms, legal.recall) == (Rate.of(2, 4), Rate.of(0, 1))


def test_domains_without_a_bar_are_measured_at_a_half() -> None:
    report = evaluate(ROWS, SCORES, thresholds=BARS, guarded=GUARDED)
    code, creative = (one for one in report.domains if one.domain in ("code", "creative_writing"))

    assert (code.threshold, code.banned, code.recall) == (0.5, False, Rate.of(2, 2))
    assert (creative.threshold, creative.banned) == (0.5, True)
    assert code.f1 == 1.0
    # medical .5, legal 0, code 1, creative 1: the F1 at 0.5 of the domains that have rows.
    assert report.macro_f1 == pytest.approx((2 / 3 + 0 + 1 + 1) / 4)


def test_groups_tell_languages_slices_and_sources_apart() -> None:
    report = evaluate(ROWS, SCORES, thresholds=BARS, guarded=GUARDED)

    assert [(one.name, one.rows) for one in report.languages] == [("de", 1), ("en", 4), ("none", 1)]
    near_miss = next(one for one in report.slices if one.name == "near-miss")
    assert (near_miss.recall, near_miss.false_bans) == (Rate.of(0, 0), Rate.of(1, 1))
    assert {one.name: one.recall.hits for one in report.sources} == {"a": 2, "b": 0, "none": 0}


def test_the_confusion_has_the_first_label_down_and_the_top_across() -> None:
    confusion = evaluate(ROWS, SCORES, thresholds=BARS, guarded=GUARDED).confusion

    assert {true: {k: v for k, v in row.items() if v} for true, row in confusion.items()} == {
        "medical": {"medical": 1, "code": 1},
        "legal": {"medical": 1},
        "code": {"code": 1},
        "creative_writing": {"creative_writing": 1},
        "none": {"general_chat": 1},
    }


def test_the_worst_mistakes_come_first_and_without_text_unless_it_is_asked_for() -> None:
    def mistakes(**options: bool) -> list[tuple[str, str, int, str, str | None]]:
        report = evaluate(ROWS, SCORES, thresholds=BARS, guarded=GUARDED, show_errors=1, **options)
        return [(m.kind, m.domain, m.row, m.id, m.text) for m in report.mistakes]

    assert mistakes() == [
        ("miss", "medical", 5, "x7", None),
        ("false_alarm", "medical", 3, "", None),
        ("miss", "legal", 2, "", None),
    ]
    assert mistakes(show_text=True)[0][-1] == "buried dose"


def test_the_calibration_error_is_the_weighted_distance_of_probability_and_share() -> None:
    rows = [Row("x", ("medical",)), Row("y", ()), Row("z", ()), Row("w", ("medical",))]
    scores = probabilities({"medical": 0.05}, {"medical": 0.05}, {"medical": 0.95}, {"medical": 1})

    medical = evaluate(rows, scores, thresholds=BARS, guarded=GUARDED).domains[0]

    filled = [(one.low, one.rows, one.positive) for one in medical.bins if one.rows]
    assert filled == [(0.0, 2, 0.5), (0.9, 2, 0.5)]
    assert medical.calibration_error == pytest.approx((2 * 0.45 + 2 * 0.475) / 4)


@pytest.mark.parametrize("seed", range(8))
def test_average_precision_agrees_with_scikit_learn_ties_included(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    positive = rng.random(60) < 0.3
    probability = rng.integers(0, 9, 60) / 8

    assert average_precision(probability, positive) == pytest.approx(
        metrics.average_precision_score(positive, probability)
    )


@pytest.mark.parametrize("rows", [(), (Row("hello", ()),)])
def test_without_positive_rows_everything_is_zero_and_nothing_breaks(rows: tuple[Row, ...]) -> None:
    scores = np.zeros((len(rows), len(DOMAINS)))

    report = evaluate(rows, scores, thresholds=BARS, guarded=GUARDED, show_errors=3)

    assert report.macro_f1 == report.top_is_right.share == 0.0
    assert all(one.recall == Rate.of(0, 0) for one in report.domains)
    assert report.mistakes == ()


def test_a_row_is_scored_as_the_request_that_it_is() -> None:
    seen: list[ChatRequest] = []

    class Recorder:
        content_hash = "0"

        def classify(self, request: ChatRequest) -> Reading:
            seen.append(request)
            return Reading((Signal("domain", "code", 0.25, "me"), Signal("domain", "new", 1, "me")))

    rows = [Row("a", ()), Row("a\nb", (), (Turn("a", "system"), Turn("b")))]
    done: list[tuple[int, int]] = []

    found = score_all(score_with(Recorder()), rows, lambda *at: done.append(at))

    assert found.tolist() == probabilities({"code": 0.25}, {"code": 0.25}).tolist()
    assert [tuple((m.role, m.text) for m in request.messages) for request in seen] == [
        (("user", "a"),),
        (("system", "a"), ("user", "b")),
    ]
    assert done == [(1, 2), (2, 2)]


def test_a_classifier_that_says_nothing_of_domains_is_refused() -> None:
    class Silent:
        content_hash = "0"

        def classify(self, request: ChatRequest) -> Reading:
            return Reading((Signal("language", "en", 1.0, "me"),))

    with pytest.raises(ConfigError, match="nothing of domains"):
        score_with(Silent())(Row("a", ()))


def test_the_shipped_classifier_is_measured_as_it_serves() -> None:
    classifier = DomainClassifier()
    row = Row("What is the maximum daily dose of ibuprofen?", ("medical",))

    signals = classifier.classify(row.request()).signals

    assert score_with(classifier)(row).tolist() == [signal.score for signal in signals]


def test_held_out_probabilities_come_from_a_file_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "held.npy"
    np.save(path, SCORES.astype(np.float32))
    assert np.allclose(read_probabilities(path, len(ROWS)), SCORES)

    for content, words in (
        (SCORES[:2], r"holds \(2, 10\), not floats of shape \(6, 10\)"),
        (SCORES + 1, "no probabilities"),
        (np.full((6, 10), np.nan), "no probabilities"),
        (np.array([["x"] * 10] * 6), "not floats"),
    ):
        np.save(path, content)
        with pytest.raises(ConfigError, match=words):
            read_probabilities(path, len(ROWS))
    path.write_bytes(b"no array")
    with pytest.raises(ConfigError, match=r"not an \.npy file"):
        read_probabilities(path, len(ROWS))
    with pytest.raises(ConfigError, match="No such file"):
        read_probabilities(tmp_path / "none.npy", len(ROWS))


def test_rows_are_counted_by_source_and_licence() -> None:
    rows = [Row("a", (), source="x", license="MIT")] * 2 + [Row("b", ())]

    assert corpora(rows) == (Corpus("x", "MIT", 2), Corpus("not said", "not said", 1))
