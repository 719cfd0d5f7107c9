"""Seeds: heard, kept apart, and used up only by tokens that are emitted.

Servers have ignored the seed of a request, let it have no effect once drafts were verified, mixed
those of parallel requests, let a request without drafts advance the generator of its neighbours, and
left a generator advanced by tokens that were never emitted.
"""

import pytest

from tests.decoding import VERIFIERS, drain, make_engine, make_request, modes


def text(mode, verifier="coupled", **params):
    request = make_request(mode=modes()[mode], verifier=VERIFIERS[verifier](), **params)
    return tuple(make_engine().generate(request).output_ids)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("mode", modes())
def test_a_seed_repeats_its_text_and_another_gives_another(mode, verifier):
    texts = [text(mode, verifier, seed=seed) for seed in range(8)]

    assert texts == [text(mode, verifier, seed=seed) for seed in range(8)]
    assert len(set(texts)) == 8


@pytest.mark.parametrize("mode", modes())
def test_without_a_seed_every_answer_has_its_own(mode):
    assert len({text(mode, seed=None, max_tokens=40) for _ in range(4)}) == 4


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_parallel_requests_with_different_seeds_keep_them(verifier):
    names = list(modes())
    requests = [
        make_request(mode=modes()[names[seed % 5]], verifier=VERIFIERS[verifier](), seed=seed)
        for seed in range(12)
    ]
    engine = make_engine(num_slots=3)
    tickets = engine.submit(requests)
    drain(engine)

    for seed, ticket in enumerate(tickets):
        assert tuple(ticket.sequence.output_ids) == text(names[seed % 5], verifier, seed=seed)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("neighbour", modes())
def test_a_neighbour_with_or_without_drafts_uses_up_nothing(neighbour, verifier):
    engine = make_engine()
    ours, theirs = engine.submit(
        [
            make_request(mode=modes()["likeliest"], verifier=VERIFIERS[verifier]()),
            make_request("ba", modes()[neighbour], seed=5, max_tokens=9),
        ]
    )
    drain(engine)

    assert tuple(ours.sequence.output_ids) == text("likeliest", verifier)
    assert theirs.sequence.num_output_tokens == 9


@pytest.mark.parametrize("seed", range(5))
def test_rejected_tokens_and_those_behind_a_cut_use_up_nothing(seed):
    """The text of a seed is one text, however much of it was drafted, rejected or cut off."""
    whole = text("standard", seed=seed, max_tokens=30)

    for mode in modes():
        for max_tokens in (1, 2, 5, 11, 30):
            assert text(mode, seed=seed, max_tokens=max_tokens) == whole[:max_tokens]
