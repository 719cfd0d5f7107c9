from __future__ import annotations

import numpy as np
import pytest

from gateway.classification import reader, reader_training, transformer
from gateway.classification.reader import Head, Reader, passage
from gateway.classification.rows import Row
from gateway.classification.stack import IS_BAN, Stack
from gateway.classification.stacking import OperatingPoints
from gateway.classification.stages import Conversation, Floats
from gateway.classification.text_model import TextModel
from gateway.classification.transformer import FEATURES, WINDOW, Transformer
from gateway.types import DOMAINS
from tests.readers import tiny_transformer

KINDS = 5


@pytest.fixture(scope="module")
def model() -> Transformer:
    found = reader.transformer_of(tiny_transformer())
    assert found is not None
    return found


def reader_that_says(model: Transformer, score: float) -> Reader:
    """Of every domain; other evidence counts nothing."""
    head = Head(
        np.zeros((FEATURES, 2), dtype=np.float32),
        np.ones(2, dtype=np.float32),
        np.full((2, len(DOMAINS)), score / 2.0, dtype=np.float32),
        np.zeros(len(DOMAINS), dtype=np.float32),
    )
    weights = np.zeros((KINDS + 1, len(DOMAINS)), dtype=np.float32)
    weights[-1] = 1.0
    return Reader(model, head, Stack(weights, np.zeros(len(DOMAINS), dtype=np.float32)))


class Unmoved:
    """A stage without an opinion."""

    kinds = KINDS

    def evidence(self, conversation: Conversation) -> Floats:
        return np.zeros((KINDS, len(DOMAINS)), dtype=np.float32)


def probabilities(found: Reader | None, text: str) -> set[float]:
    stack = Stack(np.ones((KINDS, len(DOMAINS))), np.zeros(len(DOMAINS)))
    model = TextModel((Unmoved(),), stack, found)
    return {round(float(one), 3) for one in model.probabilities([text], ["user"])[0]}


def test_a_text_means_the_same_alone_and_beside_others(model: Transformer) -> None:
    texts = [model.pieces.ids(text)[0] for text in ("my knee hurts", "the sun", "is out")]

    together = model.read(texts)

    assert together.shape == (3, FEATURES)
    for text, meaning in zip(texts, together, strict=True):
        np.testing.assert_allclose(model.read([text])[0], meaning, rtol=1e-4, atol=1e-5)


def test_the_order_of_words_counts(model: Transformer) -> None:
    one, other = (model.pieces.ids(text)[0] for text in ("my knee hurts", "hurts knee my"))

    assert not np.allclose(model.read([one]), model.read([other]), atol=1e-3)


def test_layers_are_those_of_the_published_network() -> None:
    bert = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    arrays = tiny_transformer(seed=3)
    model = reader.transformer_of(arrays)
    assert model is not None
    ids = model.pieces.ids("my knee hurts the suns")[0]
    own = {name.removeprefix(reader.PREFIX): value for name, value in arrays.items()}
    network = bert.BertModel(
        bert.BertConfig(
            vocab_size=len(own["words"]),
            hidden_size=transformer.WIDTH,
            num_hidden_layers=transformer.LAYERS,
            num_attention_heads=transformer.HEADS,
            intermediate_size=transformer.INNER,
            max_position_embeddings=WINDOW,
            hidden_act="gelu_new",
        ),
        add_pooling_layer=False,
    ).eval()
    network.load_state_dict({n: torch.tensor(v) for n, v in _published(own).items()}, strict=False)
    marked = torch.tensor([[model.pieces.first, *ids, model.pieces.last]])

    with torch.no_grad():
        states = network(marked, output_hidden_states=True).hidden_states

    wanted = [states[layer][0].mean(dim=0).numpy() for layer in transformer.TAPPED]
    wanted.append(states[-1][0].amax(dim=0).numpy())
    np.testing.assert_allclose(model.read([ids])[0], np.concatenate(wanted), rtol=1e-2, atol=1e-3)


def _published(own: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A reader's arrays under the names, and in the shapes, that transformers gives them."""
    size = transformer.WIDTH
    half = (size // transformer.HEADS) ** 0.5
    found = {
        "embeddings.word_embeddings.weight": own["words"] * own["words_scale"][:, None],
        "embeddings.position_embeddings.weight": own["places"],
        "embeddings.token_type_embeddings.weight": np.zeros((2, size), dtype=np.float32),
        "embeddings.LayerNorm.weight": own["norm_scale"],
        "embeddings.LayerNorm.bias": own["norm_shift"],
    }
    for at in range(transformer.LAYERS):
        start = f"encoder.layer.{at}."
        packed = own[f"qkv_{at}"] * own[f"qkv_{at}_steps"]
        for part, name in enumerate(("query", "key", "value")):
            columns, times = slice(part * size, (part + 1) * size), half if part == 0 else 1.0
            found[f"{start}attention.self.{name}.weight"] = packed[:, columns].T * times
            found[f"{start}attention.self.{name}.bias"] = own[f"qkv_bias_{at}"][columns] * times
        for name, theirs in (
            ("mix", "attention.output."),
            ("up", "intermediate."),
            ("down", "output."),
        ):
            matrix = own[f"{name}_{at}"] * own[f"{name}_{at}_steps"]
            found[f"{start}{theirs}dense.weight"] = matrix.T
            found[f"{start}{theirs}dense.bias"] = own[f"{name}_bias_{at}"]
            if name != "up":
                found[f"{start}{theirs}LayerNorm.weight"] = own[f"{name}_scale_{at}"]
                found[f"{start}{theirs}LayerNorm.bias"] = own[f"{name}_shift_{at}"]
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in found.items()}


def test_only_english_that_fits_is_read(model: Transformer) -> None:
    assert passage(model.pieces, ["my knee", "", "hurts"]) == model.pieces.ids("my knee hurts")[0]
    assert passage(model.pieces, [""]) is None
    assert passage(model.pieces, ["mein knie tut weh"]) is None
    assert passage(model.pieces, ["膝が痛い"]) is None
    assert passage(model.pieces, ["knee " * (WINDOW - 2)]) is not None
    assert passage(model.pieces, ["knee " * (WINDOW - 1)]) is None
    assert passage(model.pieces, ["my knee " * 10_000]) is None
    assert passage(model.pieces, ["\ud800 knee is out"]) is not None


def test_what_it_can_read_is_judged_by_it_and_the_rest_by_two_stages(model: Transformer) -> None:
    sure = reader_that_says(model, 3.0)

    assert probabilities(sure, "my knee hurts") == {0.953}
    assert probabilities(sure, "mein knie tut weh") == {0.5}
    assert probabilities(None, "my knee hurts") == {0.5}


def test_what_one_message_said_is_not_diluted_by_the_others(model: Transformer) -> None:
    rng = np.random.default_rng(4)
    head = Head(
        rng.normal(size=(FEATURES, 8)).astype(np.float32),
        np.zeros(8, dtype=np.float32),
        rng.normal(size=(8, len(DOMAINS))).astype(np.float32),
        np.zeros(len(DOMAINS), dtype=np.float32),
    )
    weights = np.zeros((KINDS + 1, len(DOMAINS)), dtype=np.float32)
    weights[-1] = 1.0
    found = Reader(model, head, Stack(weights, np.zeros(len(DOMAINS), dtype=np.float32)))
    nothing = np.zeros((KINDS, len(DOMAINS)), dtype=np.float32)

    said = [found.logits([text], nothing) for text in ("my knee hurts", "the sun is out")]
    joined = found.logits(["my knee hurts the sun is out"], nothing)
    both = found.logits(["my knee hurts", "", "the sun is out"], nothing)

    assert both is not None
    assert joined is not None
    highest = np.max([*said, joined], axis=0)
    np.testing.assert_allclose(both, np.where(IS_BAN, highest, joined), rtol=1e-3, atol=1e-3)


def test_both_ways_of_judging_share_one_operating_point() -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(5)
    labels = rng.random((4_000, len(DOMAINS))) < 0.3
    evidence = rng.normal(size=(4_000, KINDS + 1, len(DOMAINS))).astype(np.float32)
    evidence[:, :-1] += labels[:, None]
    evidence[:, -1] += 4.0 * labels
    read = rng.random(4_000) < 0.5
    base = Stack(np.full((KINDS, len(DOMAINS)), 0.2, dtype=np.float32), np.zeros(len(DOMAINS)))
    points = OperatingPoints(ban_probability=0.1, ban_miss_rate=0.05)

    plain, careful = reader_training.stacked(base, evidence, labels, read, points)
    logits = reader_training.combined(plain, careful, evidence, read)

    flagged = logits >= np.log(0.1 / 0.9)
    for at in np.flatnonzero(IS_BAN):
        assert flagged[labels[:, at], at].mean() == pytest.approx(0.95, abs=0.005)
        wrong = flagged[:, at] & ~labels[:, at]
        # The reader tells more apart, so that fewer are banned without need where it reads.
        assert wrong[read].mean() < 0.5 * wrong[~read].mean()


def test_training_reads_rows_of_any_length_in_order(model: Transformer) -> None:
    texts = ("my knee hurts", "knie", "the sun is out", "my", "knee " * 300)
    rows = [Row(text=text, domains=("medical",)) for text in texts]

    part = reader_training.part(model, rows)

    assert part.read.tolist() == [True, False, True, True, False]
    alone = model.read([model.pieces.ids("the sun is out")[0]])[0]
    np.testing.assert_allclose(part.seen[2], alone, rtol=1e-2, atol=1e-3)
    assert (part.seen[1] == 0.0).all()
