from __future__ import annotations

import pytest

from gateway.classification.language import LanguageClassifier
from gateway.types import ChatRequest, Message, Signal


@pytest.fixture(scope="module")
def classifier() -> LanguageClassifier:
    return LanguageClassifier()


def language(classifier: LanguageClassifier, *messages: Message) -> Signal:
    (signal,) = classifier.classify(ChatRequest("any", messages)).signals
    return signal


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("en", "Write a short story about a lighthouse keeper."),
        ("en", "MY PARCEL HAS NOT ARRIVED AND NOBODY ANSWERS THE PHONE"),
        ("de", "Wann muss ich mit meiner Tochter zum Arzt gehen?"),
        ("fr", "Démontre que la somme de trois entiers consécutifs est divisible par 3."),
        ("es", "¿Qué plazo tengo para reclamar contra una multa?"),
        ("it", "Qual è il modo migliore per imparare a svegliarsi presto?"),
        ("ru", "Напиши короткую сказку про кота."),
        ("ar", "من هو مخترع المصباح الكهربائي وفي أي عام؟"),
        ("he", "מה המינון המרבי של התרופה הזאת למבוגרים?"),
        ("ja", "日本の新しい制度を説明してください。"),
        ("zh", "请写一个函数，把列表按名字排序。"),
        ("ko", "이 함수를 설명해 주세요."),
        ("hi", "कृपया इस वाक्य का अनुवाद करें।"),
    ],
)
def test_languages_are_told_apart(classifier: LanguageClassifier, code: str, text: str) -> None:
    signal = language(classifier, Message("user", text))

    assert (signal.name, signal.value, signal.source) == ("language", code, "language")
    assert 0.2 <= signal.score <= 1.0


@pytest.mark.parametrize(
    "text", ["", "ok", "2 + 2 = ?", "🙂🙂🙂🙂🙂🙂", "\ud800" * 50, "____ ____ ____"]
)
def test_too_few_letters_are_undetermined(classifier: LanguageClassifier, text: str) -> None:
    signal = language(classifier, Message("user", text))

    assert (signal.value, signal.score) == ("und", 0.0)


def test_the_users_words_count_and_not_the_system_prompt_or_the_code(
    classifier: LanguageClassifier,
) -> None:
    signal = language(
        classifier,
        Message("system", "You are a helpful assistant who always answers in English. " * 20),
        Message("user", "Was macht diese Funktion?\n```\nreturn the sum of all the values\n```"),
    )

    assert signal.value == "de"


def test_the_last_turn_decides_when_the_sample_is_full(classifier: LanguageClassifier) -> None:
    signal = language(
        classifier,
        Message("user", "This is a long story about the sea and the people who live there. " * 900),
        Message("user", "Bitte fasse die Geschichte auf Deutsch zusammen, so kurz es geht. " * 80),
    )

    assert signal.value == "de"
