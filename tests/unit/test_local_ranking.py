"""The likeliest answers are given, and all that were generated are counted."""

import math

import pytest

from decoders.stats import DecodeStats
from gateway.backends.local.ranking import BestAnswers, EveryAnswer
from gateway.chunk import Chunk
from gateway.types import FinishReason, Usage


def stats(*answers):
    return [DecodeStats(num_output_tokens=n, logprob=total) for n, total in answers]


def feed(choosing, count):
    """One chunk of text and then an end for every answer, the last answer ending first."""
    out = [chunk for i in range(count) for chunk in choosing.add(Chunk(i, str(i)))]
    for i in reversed(range(count)):
        end = Chunk(i, finish_reason=FinishReason.STOP, usage=Usage(7, 10 + i, 3))
        out += choosing.add(end)
    return out


@pytest.mark.parametrize(
    ("answers", "n", "order"),
    [
        ([(2, -4.0), (4, -4.0), (1, -3.0)], 1, "1"),
        ([(2, -4.0), (4, -4.0), (1, -3.0)], 2, "10"),
        ([(2, -4.0), (2, -4.0), (2, -4.0)], 2, "01"),
        ([(2, -math.inf), (1, -90.0)], 1, "1"),
        ([(0, 0.0), (0, 0.0)], 1, "0"),
    ],
)
def test_the_mean_per_token_ranks_and_of_equals_the_first_is_better(answers, n, order):
    chunks = feed(BestAnswers(n, stats(*answers)), len(answers))

    texts = {chunk.index: chunk.text for chunk in chunks if chunk.text}
    assert "".join(texts[i] for i in sorted(texts)) == order
    assert {chunk.index for chunk in chunks if chunk.finish_reason} == set(range(n))


def test_the_tokens_of_the_others_count_with_the_first_choice():
    chunks = feed(BestAnswers(2, stats((2, -4.0), (5, -1.0), (6, -60.0), (7, -2.0))), 4)

    usage = {chunk.index: chunk.usage for chunk in chunks if chunk.usage}
    assert usage == {0: Usage(7, 11 + 2 + 6, 3), 1: Usage(7, 13, 3)}


def test_nothing_goes_out_before_the_last_answer_has_ended():
    best = BestAnswers(1, stats((1, -1.0), (1, -2.0)))

    assert not best.add(Chunk(0, "a", finish_reason=FinishReason.STOP, usage=Usage()))
    assert not best.add(Chunk(1, "b"))
    assert len(best.add(Chunk(1, finish_reason=FinishReason.LENGTH, usage=Usage()))) == 1


def test_without_a_choice_everything_goes_out_at_once():
    chunk = Chunk(3, "a")

    assert list(EveryAnswer().add(chunk)) == [chunk]
