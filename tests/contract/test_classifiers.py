"""What every registered classifier must do: an extension is tested by being registered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway import extensions
from gateway.classification.base import Classifier
from gateway.types import DOMAINS, ChatRequest, Message

NAMES = extensions.names("classifiers")

TEXTS = {
    "empty": "",
    "blank": " \n\t\r ",
    "one letter": "a",
    "plain": "Write a function that sorts a list of names, and explain how it works.",
    "huge word": "a" * 300_000,
    "huge prose": "The quick brown fox jumps over the lazy dog. " * 8_000,
    "huge lines": "x\n\n" * 100_000,
    "NUL bytes": "abc\x00def\x00" * 50,
    "lone surrogates": "before \ud800 between \udfff after",
    "surrogates alone": "\ud83d" * 40,
    "emoji": "🙂👩‍👩‍👧‍👦🏳️‍🌈" * 30,
    "base64": "TWFuIGlzIGRpc3Rpbmd1aXNoZWQ" * 200,
    "JSON": '{"a": [1, 2, {"b": null}], "c": "\\u00e4"}' * 40,
    "code": "```python\ndef f(x):\n    return x + 1\n```\n" * 30,
    "right to left": "ما هي الجرعة القصوى من الإيبوبروفين للبالغين؟ מה המינון המרבי?",
    "Chinese": "请写一个函数，把列表按名字排序，并解释它是怎么工作的。",
    "Thai": "เขียนฟังก์ชันที่เรียงรายชื่อตามตัวอักษร",
    "invisible": "\u200b\u200d\ufeff\u202e\u2066" * 30,
    "expands when folded": "\ufdfa" * 2_000,
    "combining": "e" + "\u0301" * 5_000,
    "open marks": '"' * 500 + "<document " * 500 + "```" * 501,
}


@pytest.fixture(scope="module", params=NAMES)
def classifier(request: pytest.FixtureRequest) -> Classifier:
    made: Classifier = extensions.build("classifiers", request.param, {})
    return made


def ask(text: str) -> ChatRequest:
    return ChatRequest(model="any", messages=(Message("user", text),))


def test_the_three_built_in_classifiers_are_registered() -> None:
    assert {"context", "domain", "language"} <= set(NAMES)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_any_text_gives_signals_with_probabilities_and_honest_counts(
    classifier: Classifier, text: str
) -> None:
    reading = classifier.classify(ask(text))

    assert reading.signals
    assert all(0.0 <= signal.score <= 1.0 for signal in reading.signals)
    assert all(signal.name and signal.value and signal.source for signal in reading.signals)
    assert 0 <= reading.scored_tokens <= reading.total_tokens


@pytest.mark.parametrize(
    "request_",
    [
        ChatRequest(model="any"),
        ChatRequest(model="any", prompt=""),
        ChatRequest(model="any", prompt="Once upon a time"),
        ChatRequest(model="any", prompt=()),
        ChatRequest(model="any", prompt=(1, 2, 3)),
        ChatRequest(model="any", messages=(Message("tool", "{}"), Message("robot", "beep"))),
        ChatRequest(model="any", messages=tuple(Message("user", "hello") for _ in range(300))),
    ],
    ids=["nothing", "empty prompt", "prompt", "no ids", "ids", "odd roles", "many turns"],
)
def test_any_shape_of_request_gives_signals(classifier: Classifier, request_: ChatRequest) -> None:
    assert classifier.classify(request_).signals


def test_the_same_request_gives_the_same_reading(classifier: Classifier) -> None:
    for text in TEXTS.values():
        assert classifier.classify(ask(text)) == classifier.classify(ask(text))


@pytest.mark.parametrize("name", NAMES)
def test_eight_threads_at_once_get_what_one_gets(name: str) -> None:
    # A fresh one, so that whatever it loads late is loaded by all of them at once.
    fresh: Classifier = extensions.build("classifiers", name, {})
    requests = [ask(TEXTS[key]) for key in ("plain", "Chinese", "code", "right to left")] * 8

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(fresh.classify, requests))

    alone: Classifier = extensions.build("classifiers", name, {})
    assert [alone.classify(request) for request in requests] == together


@pytest.mark.parametrize("name", NAMES)
def test_the_content_hash_is_there_and_does_not_change(name: str) -> None:
    first: Classifier = extensions.build("classifiers", name, {})
    second: Classifier = extensions.build("classifiers", name, {})
    before = first.content_hash

    first.classify(ask(TEXTS["plain"]))

    assert before
    assert before == first.content_hash == second.content_hash


def test_the_domain_classifier_gives_each_of_the_ten_domains_once() -> None:
    domain: Classifier = extensions.build("classifiers", "domain", {})

    for text in TEXTS.values():
        signals = domain.classify(ask(text)).signals
        assert tuple(signal.value for signal in signals) == DOMAINS
        assert {"domain"} == {signal.name for signal in signals}
