"""Ended answers to draft from: within their scope, within their bound, and never in anybody's way."""

import gc
import random
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.drafts import corpus as corpus_module
from decoders.drafts.base import DraftRequest
from decoders.drafts.corpus import Corpora, Corpus
from decoders.drafts.suffix import SuffixDraftSource
from decoders.modes import Speculative
from tests.decoding import VERIFIERS, drain, make_engine, make_request

TOKENS = st.lists(st.integers(0, 2), max_size=12)


def brute(answers, tokens, order):
    """The longest match over all answers, as far back as is looked, and the latest of equals."""
    best, found = 0, None
    for answer in answers:
        for end in range(order, len(answer)):
            length = 0
            while (
                length < min(end, len(tokens), 32)
                and answer[end - 1 - length] == tokens[-1 - length]
            ):
                length += 1
            if length >= order and length >= best:
                best, found = length, tuple(answer[end:])
    return best, found


@given(st.lists(TOKENS, max_size=4), TOKENS, st.integers(1, 3))
def test_the_longest_match_is_found_and_the_latest_of_equals(answers, tokens, order):
    made = Corpus(1000, order)
    for answer in answers:
        made.add(answer)
    place = made.find(tokens, 100)
    length, continuation = brute(answers, tokens, order)

    if sum(len(answer) for answer in answers) > corpus_module._CANDIDATES:
        # Only the latest places are looked at; what is found is a match all the same.
        assert place is None or place.match_length <= length
    else:
        found = (0, None) if place is None else (place.match_length, place.continuation)
        assert found == (length, continuation)


@given(st.lists(TOKENS, max_size=30), st.integers(1, 30), st.integers(1, 3))
def test_the_bound_holds_and_nothing_of_what_went_stays(answers, max_tokens, order):
    made = Corpus(max_tokens, order)
    for answer in answers:
        made.add(answer)
        assert made.num_tokens <= max_tokens
        held = list(made._answers)
        assert made.num_tokens == sum(map(len, held))
        places = [place for deque in made._places.values() for place in deque]
        assert len(places) == sum(len(kept) - order for kept in held)

    kept = [tuple(answer[-max_tokens:]) for answer in answers]
    indexed = [answer for answer in kept if len(answer) > order]
    assert list(made._answers) == latest_that_fit(indexed, max_tokens)


def latest_that_fit(answers, max_tokens):
    """The latest answers that fit together."""
    held, room = [], max_tokens
    for answer in reversed(answers):
        if len(answer) > room:
            break
        held.append(answer)
        room -= len(answer)
    return held[::-1]


def test_of_too_many_scopes_the_one_unused_for_longest_is_given_up(monkeypatch):
    monkeypatch.setattr(corpus_module, "_MAX_SCOPES", 2)
    corpora = Corpora(100, 1)
    for scope in ("a", "b", "a", "c"):
        corpora.add(scope, [1, 2, 3])

    assert len(corpora) == 2
    assert corpora.find("b", [1], 1) is None
    assert corpora.find("a", [1], 1) is not None


# -- in the source ---------------------------------------------------------------------------------


def ask(source, number, tokens, *, scope, position=0, max_tokens=8):
    (draft,) = source.propose([DraftRequest(number, tokens, max_tokens, position, scope=scope)])
    return draft


def answered(source, number, prompt, answer, *, scope):
    tokens = list(prompt)
    ask(source, number, tokens, scope=scope)
    tokens += answer
    source.forget(number)


def test_a_later_request_of_the_scope_drafts_from_an_ended_answer():
    source = SuffixDraftSource(corpus_tokens=100)
    answered(source, 1, [9, 9], [1, 2, 3, 4, 5, 6], scope="ann")

    draft = ask(source, 2, [7, 1, 2], scope="ann")

    assert draft.token_ids == (3, 4, 5, 6)
    assert (draft.match_length, draft.source) == (2, "suffix")
    assert ask(source, 3, [7, 1, 2], scope="bob").token_ids == ()
    assert ask(source, 4, [7, 1, 2], scope=None).token_ids == ()


def test_prompts_are_not_kept_and_by_default_nothing_is():
    source, plain = SuffixDraftSource(corpus_tokens=100), SuffixDraftSource()
    for made in (source, plain):
        answered(made, 1, [1, 2, 3, 4], [6, 7, 8, 9], scope="ann")

    assert ask(source, 2, [0, 1, 2], scope="ann").token_ids == ()
    assert ask(source, 3, [0, 6, 7], scope="ann").token_ids == (8, 9)
    assert ask(plain, 3, [0, 6, 7], scope="ann").token_ids == ()


def test_the_sequence_itself_is_preferred_to_an_equal_match():
    source = SuffixDraftSource(corpus_tokens=100)
    answered(source, 1, [0], [1, 2, 3, 3, 3], scope="")

    assert ask(source, 2, [1, 2, 4, 5, 1, 2], scope="").token_ids == (4, 5, 1, 2)
    assert ask(source, 3, [1, 2, 4, 0, 2, 3], scope="").token_ids == (3, 3)


@given(st.data())
def test_no_scope_ever_drafts_a_token_of_another(data):
    """Each scope has an alphabet of its own, so that a leak would show as a foreign token."""
    source = SuffixDraftSource(min_match=1, corpus_tokens=data.draw(st.integers(1, 40)))
    running = {}
    for number in range(data.draw(st.integers(0, 20))):
        scope = data.draw(st.integers(0, 2))
        own = st.lists(st.integers(10 * scope, 10 * scope + 2), min_size=1, max_size=6)
        running[number] = (scope, data.draw(own))
        # What all ask about is the same token, which every scope's answers hold too.
        running[number][1].append(99)
        draft = ask(source, number, running[number][1], scope=str(scope), position=1)
        assert all(token == 99 or token // 10 == scope for token in draft.token_ids)
        running[number][1].extend([*data.draw(own), 99])
        if data.draw(st.booleans()):
            source.forget(number)


@pytest.mark.parametrize("options", [{"corpus_tokens": -1}, {"tokens_per_match": 0.0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SuffixDraftSource(**options)


# -- in the engine ---------------------------------------------------------------------------------


def requests(source, count, verifier="coupled"):
    return [
        make_request("abc", Speculative(source, 4), verifier=VERIFIERS[verifier](), seed=seed % 3)
        for seed in range(count)
    ]


def test_what_others_have_been_answered_changes_no_answer_and_saves_passes():
    source = SuffixDraftSource(corpus_tokens=1000)
    engine = make_engine()
    rows = [engine.generate(request) for request in requests(source, 6)]
    alone = [make_engine().generate(r) for r in requests(SuffixDraftSource(), 6)]

    assert [row.output_ids for row in rows] == [row.output_ids for row in alone]
    assert all(
        again.stats.num_steps < first.stats.num_steps
        for first, again in zip(rows[:3], rows[3:], strict=True)
    )


def test_a_verifier_that_judges_with_coins_gets_nothing_from_ended_answers():
    """A second answer of one seed would be judged with the coins that have made its draft."""
    source = SuffixDraftSource(corpus_tokens=1000)
    engine = make_engine()
    for request in requests(source, 3):
        engine.generate(request)
    rows = [engine.generate(request) for request in requests(source, 6, "rejection")]
    alone = [make_engine().generate(r) for r in requests(SuffixDraftSource(), 6, "rejection")]

    assert [row.output_ids for row in rows] == [row.output_ids for row in alone]
    assert len(source._corpora) == 1


def test_a_cancelled_row_leaves_only_what_it_had_answered():
    source = SuffixDraftSource(corpus_tokens=1000)
    engine = make_engine()
    (ticket,) = engine.submit(requests(source, 1))
    for _ in range(5):
        engine.step()
    ticket.cancel()
    drain(engine)
    answer = tuple(ticket.sequence.output_ids)

    assert list(source._corpora._by_scope[""]._answers) == [answer]
    assert source._rows == {}
    gone = weakref.ref(ticket.sequence)
    del ticket
    gc.collect()
    assert gone() is None


def test_rows_that_are_cancelled_before_they_begin_leave_nothing():
    source = SuffixDraftSource(corpus_tokens=1000)
    engine = make_engine(num_slots=1)
    tickets = engine.submit(requests(source, 4))
    for ticket in tickets:
        ticket.cancel()
    drain(engine)

    assert source._rows == {}
    assert len(source._corpora) == 0


def test_a_long_run_stays_within_its_bound():
    source = SuffixDraftSource(corpus_tokens=60)
    chance = random.Random(0)
    for number in range(300):
        answer = [chance.randrange(4) for _ in range(chance.randrange(80))]
        answered(source, number, [0], answer, scope=str(number % 3))

    assert [made.num_tokens <= 60 for made in source._corpora._by_scope.values()] == [True] * 3
    assert source._rows == {}
