"""What is counted in answers: hedges, repetition, gold answers."""

from __future__ import annotations

import pytest

from gateway.experiments import wording


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Perhaps it works. It MIGHT not.", 2),
        ("I think it’s fine; I’m not sure.", 2),  # "I'm not" begins first, and has the "not"
        ("The dismay of the mighty is not a likelihood.", 0),
        ("More or less, it depends.", 2),
        ("", 0),
    ],
)
def test_hedges_are_whole_phrases(text: str, count: int) -> None:
    assert wording.num_hedges(text) == count


def test_the_rate_of_hedges_is_over_all_words() -> None:
    assert wording.hedges_per_100_words(["perhaps one", "two three"]) == pytest.approx(25.0)
    assert wording.hedges_per_100_words(["", "…"]) == 0.0
    assert wording.num_words("It's 3.5 km, isn’t it?") == 6


def test_repetition_counts_runs_that_were_there_before() -> None:
    assert wording.repetition([1, 2, 3, 4, 5]) == 0.0
    assert wording.repetition([1, 2, 1, 2, 1, 2], n=2) == pytest.approx(1 - 2 / 5)
    assert wording.repetition([1, 2]) == 0.0


def test_gold_answers_are_compared_as_squad_does() -> None:
    assert wording.exact_match("The  Eiffel Tower!", ["eiffel tower"])
    assert not wording.exact_match("It is the Eiffel Tower", ["eiffel tower"])
    assert wording.contains("It is the Eiffel Tower.", ["Louvre", "eiffel tower"])
    assert not wording.contains("It is 1450 metres.", ["145", "", "the"])
    # 2 of 4 words ("it is eiffel tower") and 2 of 2: 2 · 2 / 6
    assert wording.f1("It is the Eiffel Tower.", ["Louvre", "eiffel tower"]) == pytest.approx(2 / 3)
    assert (wording.f1("", ["x"]), wording.f1("", [""]), wording.f1("x", [])) == (0.0, 1.0, 0.0)
