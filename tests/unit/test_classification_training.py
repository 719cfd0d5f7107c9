from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from gateway.classification import linear, synthetic, training
from gateway.classification.domain import DomainClassifier
from gateway.classification.evaluation import Report, evaluate
from gateway.classification.rows import Row, read_rows
from gateway.errors import ConfigError
from gateway.types import DOMAINS, ChatRequest

SAMPLE = read_rows([Path("tests/data/domains_sample.jsonl")])


@pytest.fixture(scope="module")
def trained() -> linear.LinearModel:
    pytest.importorskip("sklearn")
    return training.train(SAMPLE)


def report(model: linear.LinearModel) -> Report:
    scores = training._score(model, SAMPLE)
    return evaluate(
        SAMPLE,
        model.probabilities(scores).astype(np.float64),
        thresholds={"medical": 0.10, "legal": 0.10},
        guarded=("medical", "legal"),
    )


def test_the_same_rows_give_the_same_bytes(trained: linear.LinearModel) -> None:
    assert trained.dump() == training.train(SAMPLE).dump()


def test_a_trained_model_comes_back_from_its_file(
    trained: linear.LinearModel, tmp_path: Path
) -> None:
    path = tmp_path / "weights.npz"
    path.write_bytes(trained.dump())

    loaded, _ = linear.load(path)

    windows = ["which painkiller is safe?", "write a function"]
    assert np.allclose(trained.scores(windows), loaded.scores(windows), atol=0.02)
    assert DomainClassifier(weights=str(path)).classify(ChatRequest("any", prompt="hi")).signals


def test_a_trained_model_has_learnt_its_rows(trained: linear.LinearModel) -> None:
    assert report(trained).top_is_right.share > 0.8


def test_progress_counts_up_to_the_last_fit() -> None:
    pytest.importorskip("sklearn")
    seen: list[tuple[int, int]] = []

    training.train(
        SAMPLE,
        options=training.Options(folds=2),
        progress=lambda done, all_: seen.append((done, all_)),
    )

    assert [(at, 30) for at in range(1, 31)] == seen


def test_a_domain_with_too_few_rows_is_named() -> None:
    few = [row for row in SAMPLE if "finance" not in row.domains]

    with pytest.raises(ConfigError, match=r"at least 5 rows: finance has 0"):
        training.train(few)


def test_training_without_scikit_learn_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)

    with pytest.raises(ConfigError, match="pip install scikit-learn"):
        training.train(SAMPLE)


def test_sources_are_kept_together_only_where_every_domain_stays_learnable() -> None:
    rows = [
        Row(f"{domain} {at}", (domain,), source=f"source {at}")
        for domain in DOMAINS
        for at in range(6)
    ]
    labels = np.array([[domain in row.domains for domain in DOMAINS] for row in rows])

    by_source = training._folds(rows, labels, 3)
    one_source = [Row(row.text, row.domains, source="only") for row in rows]
    by_row = training._folds(one_source, labels, 3)

    for at in range(6):
        assert (
            len({int(by_source[i]) for i, row in enumerate(rows) if row.text.endswith(str(at))})
            == 1
        )
    for fold in range(3):
        assert (labels[by_row == fold].sum(axis=0) == 2).all()


def test_probabilities_meet_their_operating_points_on_held_out_scores() -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    positive = np.arange(400) < 100
    scores = (rng.normal(size=400) + 2.0 * positive).astype(np.float32)

    slope, intercept = training._calibrate(
        scores, positive, training.OperatingPoint(0.10, target_recall=0.95)
    )

    reached = 1.0 / (1.0 + np.exp(-(slope * scores + intercept))) >= 0.10 - 1e-9
    assert 0.94 <= reached[positive].mean() <= 0.96


HOST = Row("print(1)\n" * 60, ("code",))
SENSITIVE_GUEST = Row("is aspirin safe?", ("medical",))
ORDINARY_GUEST = Row("what is the capital of France?", ("factual_qa",))
ALL_KINDS = synthetic.Mixture(inside=4.0, alike=1.0, strung=1.0, noise=4)


def test_mixtures_carry_the_domains_of_their_parts() -> None:
    rows = [HOST, SENSITIVE_GUEST, ORDINARY_GUEST]

    made = synthetic.mixtures(rows, ALL_KINDS, seed=1)

    mixed = [row for row in made if "aspirin" in row.text]
    assert len(mixed) == 12
    assert sum(set(row.domains) == {"code", "medical"} for row in mixed) == 6
    assert sum(set(row.domains) == {"factual_qa", "medical"} for row in mixed) == 6
    assert made == synthetic.mixtures(rows, ALL_KINDS, seed=1)
    assert made != synthetic.mixtures(rows, ALL_KINDS, seed=2)


def test_for_each_sensitive_mixture_there_is_one_that_differs_in_the_guest_alone() -> None:
    made = synthetic.mixtures([HOST, SENSITIVE_GUEST, ORDINARY_GUEST], ALL_KINDS, seed=1)

    sensitive = [row for row in made if "medical" in row.domains]
    ordinary = [row for row in made if "medical" not in row.domains]

    assert len(ordinary) == 12 + 3 + 3
    for one, other in zip(sensitive, ordinary, strict=False):
        assert one.text.replace(SENSITIVE_GUEST.text, ORDINARY_GUEST.text) == other.text


def test_rows_without_parts_to_mix_give_no_mixtures() -> None:
    assert synthetic.mixtures([SENSITIVE_GUEST], ALL_KINDS, seed=1) == []


def test_noise_belongs_to_no_domain() -> None:
    made = synthetic.noise(ALL_KINDS, seed=1)

    assert [row.domains for row in made] == [()] * 4
    assert made == synthetic.noise(ALL_KINDS, seed=1)


def test_calibration_rows_of_their_own_save_the_cross_fitting() -> None:
    pytest.importorskip("sklearn")
    seen: list[int] = []

    model = training.train(SAMPLE, calibration=SAMPLE, progress=lambda done, _: seen.append(done))

    assert seen == list(range(1, 11))
    assert report(model).domains[0].recall.share >= 0.85


def test_calibration_rows_that_lack_a_domain_are_refused() -> None:
    few = [row for row in SAMPLE if "legal" not in row.domains]

    with pytest.raises(ConfigError, match=r"calibration data: .*legal has 0"):
        training.train(SAMPLE, calibration=few)
