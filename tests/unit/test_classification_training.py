from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from gateway.classification import features, stacking, synthetic, training, weights
from gateway.classification.domain import DomainClassifier
from gateway.classification.evaluation import Report, evaluate
from gateway.classification.rows import Row, labels_of, read_rows
from gateway.classification.scoring import Probabilities, score_all, score_with
from gateway.errors import ConfigError
from gateway.types import DOMAINS
from tests.encoders import tiny_encoder
from tests.readers import WORDS, tiny_transformer

SAMPLE = read_rows([Path("tests/data/domains_sample.jsonl")])
FEW = training.Options(
    folds=2,
    lexical_mixture=synthetic.Mixture(inside=0.2, alike=0.1, strung=0.05, noise=8),
    head_mixture=synthetic.Mixture(inside=0.2, alike=0.1, strung=0.05, noise=8),
)


def report(probabilities: Probabilities) -> Report:
    bars = {"medical": 0.10, "legal": 0.10}
    return evaluate(SAMPLE, probabilities, thresholds=bars, guarded=tuple(bars))


@pytest.fixture(scope="module")
def trained() -> training.Trained:
    pytest.importorskip("sklearn")
    return training.train(SAMPLE, tiny_encoder(), options=FEW)


def test_the_same_rows_give_the_same_bytes(trained: training.Trained) -> None:
    assert trained.data == training.train(SAMPLE, tiny_encoder(), options=FEW).data


def test_a_trained_model_comes_back_from_its_file(
    trained: training.Trained, tmp_path: Path
) -> None:
    path = tmp_path / "weights.npz"
    path.write_bytes(trained.data)

    classifier = DomainClassifier(weights=str(path))
    assert report(score_all(score_with(classifier), SAMPLE)).top_is_right.share > 0.8


def test_a_third_stage_is_trained_where_it_can_read_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    said = " ".join(features.normalise(text) for row in SAMPLE for text in row.texts())
    words = sorted({*WORDS, *re.findall(r"[a-z]+|[^\sa-z]", said)})
    arrays = tiny_encoder() | tiny_transformer(words=words)
    seen: list[tuple[int, int]] = []

    found = training.train(
        SAMPLE, arrays, options=FEW, progress=lambda done, all_: seen.append((done, all_))
    )

    path = tmp_path / "weights.npz"
    path.write_bytes(found.data)
    model, _ = weights.load(path)
    assert model.reader is not None
    assert seen[-1][0] == seen[-1][1]
    # The encoder that a file is trained with again has nothing of what was trained.
    assert weights.load_encoder(path).keys() == arrays.keys()


def test_rows_that_the_third_stage_cannot_read_leave_it_out(
    trained: training.Trained, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    found = training.train(
        SAMPLE,
        tiny_encoder() | tiny_transformer(),
        options=FEW,
        progress=lambda done, all_: seen.append((done, all_)),
    )

    assert found.data == trained.data
    assert seen[-1][0] == seen[-1][1]


def test_what_is_held_out_was_not_learnt(trained: training.Trained) -> None:
    assert trained.held_out.shape == (len(SAMPLE), len(DOMAINS))
    assert report(trained.held_out.astype(np.float64)).top_is_right.share < 0.8


def test_progress_counts_up_to_the_last_step() -> None:
    pytest.importorskip("sklearn")
    seen: list[tuple[int, int]] = []

    training.train(
        SAMPLE,
        tiny_encoder(),
        options=FEW,
        progress=lambda done, all_: seen.append((done, all_)),
    )

    assert [(at, len(seen)) for at in range(1, len(seen) + 1)] == seen


def test_a_domain_with_too_few_rows_is_named() -> None:
    few = [row for row in SAMPLE if "finance" not in row.domains]

    with pytest.raises(ConfigError, match=r"at least 5 rows: finance has 0"):
        training.train(few, tiny_encoder())


def test_training_without_scikit_learn_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)

    with pytest.raises(ConfigError, match="pip install scikit-learn"):
        training.train(SAMPLE, tiny_encoder())


def test_sources_are_kept_together_only_where_every_domain_stays_learnable() -> None:
    rows = [
        Row(f"{domain} {at}", (domain,), source=f"source {at}")
        for domain in DOMAINS
        for at in range(6)
    ]
    labels = labels_of(rows)

    by_source = training.folds(rows, labels, 3)
    one_source = [Row(row.text, row.domains, source="only") for row in rows]
    by_row = training.folds(one_source, labels, 3)

    for at in range(6):
        assert (
            len({int(by_source[i]) for i, row in enumerate(rows) if row.text.endswith(str(at))})
            == 1
        )
    for fold in range(3):
        assert (labels[by_row == fold].sum(axis=0) == 2).all()


def test_probabilities_meet_their_operating_points_on_held_out_evidence() -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    labels = np.arange(400)[:, None] % len(DOMAINS) == np.arange(len(DOMAINS))
    evidence = (rng.normal(size=(400, 5, len(DOMAINS))) + 2.0 * labels[:, None]).astype(np.float32)

    stack = stacking.fit(evidence, labels, stacking.OperatingPoints(ban_miss_rate=0.05))

    reached = 1.0 / (1.0 + np.exp(-stack.logits(evidence))) >= 0.10 - 1e-6
    assert (stack.weights >= 0.0).all()
    for column in (0, 1):
        assert 0.94 <= reached[labels[:, column], column].mean() <= 0.96


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
