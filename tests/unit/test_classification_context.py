from __future__ import annotations

import pytest

from gateway.classification.context import ContextClassifier
from gateway.types import ChatRequest, Message

PASSAGE = (
    "The lighthouse was first lit on 14 October 1847 and has been seen from the ferry ever since. "
)


def has_context(*messages: Message, **options: int) -> str:
    (signal,) = ContextClassifier(**options).classify(ChatRequest("any", messages)).signals
    assert (signal.name, signal.score, signal.source) == ("has_context", 1.0, "context")
    return signal.value


def user(text: str) -> Message:
    return Message("user", text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Who built the lighthouse?",
        "Context: none",
        "What does the word context: mean in this sentence, and why is a colon put behind it so often?",
        "Explain `x = 1` and ```y = 2```.",
        '"Hello," she said, and then a long while nothing at all, until at last he answered, "Yes."',
        "> short",
        "Is 1 < text > 2?",
        "Why?\n" * 60,
    ],
)
def test_a_question_without_a_source_has_no_context(text: str) -> None:
    assert has_context(user(text)) == "false"


@pytest.mark.parametrize(
    "text",
    [
        f"Context: {PASSAGE}\nWhen was it lit?",
        f"Answer from the source.\n\n**Source 1:**\n{PASSAGE}",
        f"Quelle: {PASSAGE}",
        f"原文：{PASSAGE}",
        f"<document title='a'>{PASSAGE}</document> When?",
        f"<Context>\n{PASSAGE}",
        f"When was it lit?\n```\n{PASSAGE}\n```",
        f"When?\n> {PASSAGE[:50]}\n> {PASSAGE[50:]}",
        f"Shorten “{PASSAGE}”",
        f'Shorten "{PASSAGE}" please',
        f"Who lit it?\n\n{PASSAGE * 8}",
        f"{PASSAGE * 8}\nWho lit it?",
        PASSAGE * 8,
    ],
)
def test_a_marked_or_a_long_passage_is_context(text: str) -> None:
    assert has_context(user(text)) == "true"


def test_a_tool_that_answered_is_context_and_a_silent_one_is_not() -> None:
    assert has_context(user("Weather?"), Message("tool", "18 °C")) == "true"
    assert has_context(user("Weather?"), Message("tool", " \n")) == "false"
    assert has_context(user("Weather?"), Message("tool", "", tool_call_id="call_1")) == "false"


def test_a_passage_in_the_system_prompt_counts_only_when_it_is_marked() -> None:
    rules = "Be brief. Be kind. Never promise what you cannot keep. " * 40

    assert has_context(Message("system", rules), user("When?")) == "false"
    assert has_context(Message("system", f"{rules}\nContext:\n{PASSAGE}"), user("When?")) == "true"


def test_a_passage_of_an_earlier_turn_still_counts() -> None:
    turns = (user(f"Text: {PASSAGE}"), Message("assistant", "Thanks."), user("When was it lit?"))

    assert has_context(*turns) == "true"


def test_the_length_of_an_unmarked_passage_is_an_option_and_part_of_the_hash() -> None:
    text = f"When?\n{PASSAGE * 3}"

    assert has_context(user(text)) == "false"
    assert has_context(user(text), min_context_characters=200) == "true"
    assert (
        ContextClassifier().content_hash
        != ContextClassifier(min_context_characters=200).content_hash
    )


def test_a_text_prompt_is_looked_at_like_a_user_turn() -> None:
    reading = ContextClassifier().classify(ChatRequest("any", prompt=f"Context: {PASSAGE}"))

    assert reading.signals[0].value == "true"
    assert (reading.scored_tokens, reading.total_tokens) == (0, 0)
