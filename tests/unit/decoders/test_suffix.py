"""The suffix source proposes what followed the longest earlier match."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.drafts.base import DraftRequest
from decoders.drafts.suffix import SuffixAutomaton, SuffixDraftSource


def longest_repeated_suffix(tokens):
    for length in range(len(tokens) - 1, 0, -1):
        suffix = tokens[-length:]
        if any(tokens[i : i + length] == suffix for i in range(len(tokens) - length)):
            return length
    return 0


@given(st.lists(st.integers(0, 2), max_size=40))
def test_the_match_is_the_longest_suffix_that_stands_earlier(tokens):
    automaton = SuffixAutomaton()
    for count, token in enumerate(tokens, 1):
        automaton.append(token)
        length, end = automaton.match()

        seen = tokens[:count]
        assert length == longest_repeated_suffix(seen)
        if length:
            assert end < count - 1
            assert seen[end - length + 1 : end + 1] == seen[-length:]


def propose(tokens, max_tokens=8, **options):
    return SuffixDraftSource(**options).propose([DraftRequest(0, tokens, max_tokens)])[0].token_ids


def test_the_continuation_of_the_match_is_proposed():
    assert propose([1, 2, 3, 4, 5, 9, 1, 2], max_tokens=3) == (3, 4, 5)


def test_longer_matches_give_longer_drafts():
    text = list(range(20))

    assert len(propose([*text, 50, 0, 1], 16)) == 4
    assert len(propose([*text, 50, 0, 1, 2, 3, 4], 16)) == 10


def test_no_draft_is_longer_than_asked_for():
    assert propose([*range(20), 50, *range(10)], 1) == (10,)


def test_a_repetition_is_continued_with_its_own_period():
    assert propose([7, 8, 7, 8, 7, 8], 6) == (7, 8, 7, 8, 7, 8)


@pytest.mark.parametrize("tokens", [[1], [1, 2, 3], [1, 2, 1, 3]])
def test_nothing_is_proposed_without_a_match_of_the_minimal_length(tokens):
    assert propose(tokens) == ()


def test_a_match_may_have_to_be_longer():
    (draft,) = SuffixDraftSource(min_match=2).propose([DraftRequest(0, [1, 2, 1], 8)])

    assert draft.token_ids == ()


def test_a_draft_says_how_long_the_match_was_and_keeps_it_when_cut():
    tokens = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    (draft,) = SuffixDraftSource().propose([DraftRequest(0, tokens, 8)])

    assert draft.match_length == 3
    assert draft.first(1).match_length == 3


def test_sequences_do_not_see_one_another():
    source = SuffixDraftSource()
    source.propose([DraftRequest(0, [1, 2, 3, 4, 1, 2], 4)])

    (draft,) = source.propose([DraftRequest(1, [1, 2], 4)])

    assert draft.token_ids == ()


def test_a_forgotten_sequence_leaves_nothing_behind():
    source = SuffixDraftSource()
    source.propose([DraftRequest(0, [1, 2, 3], 4)])

    source.forget(0)
    source.forget(0)

    assert source._rows == {}


def test_the_index_grows_in_linear_time():
    """Ten times the text must not cost a hundred times the steps, whatever it repeats."""
    source = random.Random(1)
    for alphabet in (1, 2, 50_000):
        sizes = []
        for count in (2_000, 20_000):
            automaton = SuffixAutomaton()
            for _ in range(count):
                automaton.append(source.randrange(alphabet))
            sizes.append(len(automaton._length))
        assert sizes[1] <= 2 * 20_000 + 1
        assert sizes[1] / sizes[0] < 12


def test_a_long_prompt_is_indexed_at_once():
    start = time.perf_counter()
    propose([i % 977 for i in range(8_000)])

    assert time.perf_counter() - start < 5  # a quadratic index would take minutes
