"""``draftgate classifier train-probe``: a model's hidden states in, a probe of that model out."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from decoders.loader import load as load_model
from gateway import probe as probes
from gateway.backends.local.pooling import PromptPooler
from gateway.backends.local.probe import DomainProbe, find_probe
from gateway.classification import probe_training
from gateway.classification.second_opinion import compare
from gateway.cli import main
from gateway.errors import ConfigError
from gateway.probe import BLOCK, Blocks
from gateway.types import DOMAINS


@pytest.fixture
def data(tmp_path):
    """Rows that say their domain; three sources."""
    path = tmp_path / "rows.jsonl"
    words = ("pill", "court", "bank", "loop", "sum", "who", "json", "poem", "order", "hello")
    lines = [
        {"text": f"{word} {word} {i}", "domains": [domain], "source": f"s{i % 3}"}
        for i in range(6)
        for domain, word in zip(DOMAINS, words, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def invoke(*arguments):
    return CliRunner().invoke(main, ["classifier", "train-probe", *map(str, arguments)])


def test_what_it_writes_fits_its_model_and_is_shown(tiny_model, data, tmp_path):
    out = tmp_path / "probe.npz"
    done = invoke(data, "--model", tiny_model, "--out", out, "--layers", "1", "--dev", data)

    assert done.exit_code == 0, done.output
    assert "60 rows, each by a probe that has not seen its source" in done.output
    assert "recall at equal false bans" in done.output
    weights, content_hash = probes.load(out)
    assert content_hash in done.output
    assert weights.layers == (1,)
    loaded = load_model(str(tiny_model), device="cpu", num_slots=1, max_length=64)
    found = find_probe(str(out), loaded)
    assert isinstance(found, DomainProbe)
    assert found.content_hash == content_hash


def test_rows_can_be_fewer(tiny_model, data, tmp_path):
    out = tmp_path / "probe.npz"
    done = invoke(
        data, "--model", tiny_model, "--out", out, "--layers", "1", "--max-rows", 45
    )  # fmt: skip

    assert done.exit_code == 0, done.output
    assert "45 rows" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "9"], "name some of 1 to 1"),
        (["--layers", "first"], "such as 8"),
        (["--layers", "1", "--window", "50"], "multiple of 32"),
        (["--layers", "1", "--max-rows", "1"], "no row of"),
    ],
)
def test_wrong_input_says_how_to_mend_it(tiny_model, data, tmp_path, options, message):
    done = invoke(data, "--model", tiny_model, "--out", tmp_path / "p.npz", *options)

    assert done.exit_code == 2
    assert message in done.output


def test_a_folder_that_is_not_there_is_said_first(data, tmp_path):
    done = invoke(data, "--model", "nothing", "--out", tmp_path / "no" / "p.npz")

    assert done.exit_code == 2
    assert "no such folder" in done.output


def test_training_pools_what_serving_pools(tiny_model):
    """The prefix left out, in whichever passes, for a projection that a test can follow."""
    pooler = PromptPooler(str(tiny_model), layers=(1,), max_tokens=120, device="cpu")
    text = "what may I take against this, and how much of it? " * 3
    pooled = [pooler.pool([("user", text)]) for _ in range(2)]
    system = pooler.pool([("system", "be brief"), ("user", "hi")])
    again = pooler.pool([("user", text)])

    generator = np.random.default_rng(5)
    projection = generator.normal(size=(1, 32, len(DOMAINS))).astype(np.float32)
    weights = probes.ProbeWeights(
        model="tiny", model_weights=pooler.weights, layers=(1,), projection=projection,
        mixing=np.ones((2, len(DOMAINS)), np.float32), intercept=np.zeros(len(DOMAINS), np.float32),
        window=64, step=BLOCK, prefix=pooler.prefix,
    )  # fmt: skip
    served = Served(tiny_model, DomainProbe(weights, "h"))
    mean, _ = weights.pooled(served.scores(pooler._encode([("user", text)])[:120]))

    for blocks in (*pooled, again):
        expected = np.average(blocks.means.astype(np.float32), axis=0, weights=blocks.sizes)
        np.testing.assert_allclose(expected @ projection[0], mean, atol=2e-2)
    assert blocks.sizes.sum() == 120 - len(pooler.prefix)
    assert system.sizes.sum() == len(pooler._encode([("system", "be brief"), ("user", "hi")]))


class Served:
    """The scores of every token, as an engine keeps them."""

    def __init__(self, folder, probe):
        from decoders.models.base import Row

        self._row, self._probe = Row, probe
        self._model = load_model(str(folder), device="cpu", num_slots=1, max_length=200).model
        self.layers, self._kept = probe.layers, []
        self._model.watch(self)

    def see(self, places, hidden):
        self._kept.append(self._probe.project(hidden))

    def scores(self, token_ids):
        self._model.forward([self._row(0, 0, tuple(token_ids[:50]), 0)])
        self._model.forward([self._row(0, 50, tuple(token_ids[50:]), 1)])
        scores = np.concatenate([kept.numpy() for kept in self._kept])
        return scores[len(self._probe._weights.prefix) :]


def synthetic(rows=120, seed=1):
    generator = np.random.default_rng(seed)
    labels = np.eye(len(DOMAINS), dtype=bool)[np.arange(rows) % len(DOMAINS)]
    blocks = [
        Blocks(
            means=(3 * label + generator.normal(size=(3, len(DOMAINS)))).astype(np.float16),
            sizes=np.array([BLOCK, BLOCK, 5]),
        )
        for label in labels
    ]
    return blocks, labels, [f"s{i % 4}" for i in range(rows)]


def test_what_can_be_told_apart_is_told_apart_on_sources_that_were_not_seen():
    trained = probe_training.train(*synthetic())

    assert min(trained.average_precisions) > 0.95
    labels = synthetic()[1]
    medical = trained.held_out[:, 0]
    assert (medical[~labels[:, 0]] >= 0.1).mean() <= 0.03
    assert trained.mixing[0, 0] == 0 < trained.mixing[1, 0]
    assert trained.mixing[1, 3] == 0 < trained.mixing[0, 3]


def test_the_same_rows_give_the_same_probe():
    one, other = (probe_training.train(*synthetic()) for _ in range(2))

    assert np.array_equal(one.projection, other.projection)


def test_sources_stay_together():
    folds = probe_training.source_folds(["a"] * 5 + ["b"] * 3 + ["c"] * 2, 2)

    assert [len(set(part.tolist())) for part in (folds[:5], folds[5:8], folds[8:])] == [1, 1, 1]
    assert folds[0] != folds[5]
    assert set(probe_training.source_folds(["a"] * 6, 3).tolist()) == {0, 1, 2}


def test_a_domain_without_rows_is_refused():
    blocks, labels, sources = synthetic()
    labels[:, 0] = False

    with pytest.raises(ConfigError, match="no row of medical"):
        probe_training.train(blocks, labels, sources)


def test_opinions_that_miss_different_rows_find_more_together():
    labels = np.zeros((40, len(DOMAINS)), bool)
    labels[:20, 0] = True
    text = np.where(labels, 0.05, 0.01).astype(np.float32)
    probe = text.copy()
    text[:15, 0], probe[5:20, 0] = 0.9, 0.9
    folds = np.arange(40) % 4
    found = {one.way: one for one in compare(text, probe, labels, folds)}

    assert (found["text model"].recall, found["probe"].recall, found["either"].recall) == (
        0.75,
        0.75,
        1.0,
    )
    assert found["either"].false_bans == 0
