"""A transformers model in the text model's place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.classification.sequence import MAX_WINDOWS, SequenceClassifier
from gateway.errors import ConfigError
from gateway.types import ChatRequest

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dose", "court", "hello"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=16).save_pretrained(
        folder
    )
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=16,
        id2label={0: "medical", 1: "legal", 2: "other"},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_its_labels_that_are_domains_give_probabilities(model: Path) -> None:
    reading = SequenceClassifier(str(model)).classify(ChatRequest("any", prompt="dose dose court"))

    assert [signal.value for signal in reading.signals] == ["legal", "medical"]
    assert all(0.0 < signal.score < 1.0 for signal in reading.signals)
    assert (reading.scored_tokens, reading.total_tokens) == (3, 3)


def test_labels_can_be_said_to_mean_a_domain(model: Path) -> None:
    named = SequenceClassifier(str(model), labels={"other": "general_chat"})

    reading = named.classify(ChatRequest("any", prompt="hello"))

    assert "general_chat" in {signal.value for signal in reading.signals}
    assert named.content_hash != SequenceClassifier(str(model)).content_hash


def test_a_long_text_is_read_in_windows_and_what_is_left_is_said(model: Path) -> None:
    reading = SequenceClassifier(str(model)).classify(ChatRequest("any", prompt="dose " * 1_000))

    assert 0 < reading.scored_tokens < reading.total_tokens
    assert reading.scored_tokens == MAX_WINDOWS * 14


@pytest.mark.parametrize("prompt", ["", (), (1, 2)])
def test_no_text_has_no_signal(model: Path, prompt: str | tuple[int, ...]) -> None:
    reading = SequenceClassifier(str(model)).classify(ChatRequest("any", prompt=prompt))

    assert (reading.signals, reading.scored_tokens) == ((), 0)
    assert reading.total_tokens == len(prompt)


@pytest.mark.parametrize(
    ("labels", "words"),
    [({"nothing": "medical"}, "names nothing"), ({"other": "law"}, "names law")],
)
def test_labels_that_do_not_fit_are_named(model: Path, labels: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SequenceClassifier(str(model), labels=labels)


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot load"):
        SequenceClassifier(str(tmp_path / "none"))


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(ConfigError, match="pip install transformers"):
        SequenceClassifier("any")
