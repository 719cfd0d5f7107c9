"""The cache after rejected drafts, on small real models.

Caches have been cropped wrongly at a window or block boundary, reset instead of rolled back, rolled
back right once and wrong the second time, and scrambled by a prompt that was prefilled in chunks.
Random schedules on every architecture that is served, and the refusal of those that cannot roll back
(sliding windows, recurrent state), are in `tests/unit/decoders/test_hf_model.py`.
"""

import pytest

from decoders.engine import Engine
from decoders.loader import load
from decoders.modes import Speculative, Standard
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.testing import ScriptedDraftSource
from decoders.verifiers.rejection import RejectionVerifier

PROMPT = "The quick brown fox jumps over the lazy dog. The quick brown"


@pytest.fixture(scope="module")
def loaded(tiny_model):
    return load(str(tiny_model), device="cpu", dtype="float32", num_slots=3, max_length=192)


def engine(loaded, **options):
    return Engine(loaded.model, loaded.tokenizer, **options)


def request(loaded, mode=None, *, text=PROMPT, verifier=None, **params):
    params = {"max_tokens": 40, "seed": 3, "temperature": 0.8} | params
    options = {"verifier": verifier} if verifier else {}
    return Request(
        loaded.tokenizer.encode(text), SamplingParams(**params), mode or Standard(), **options
    )


def partly_right(answer, num_prompt_tokens, *, right):
    """Drafts that are right for ``right`` tokens and wrong for the rest."""

    def script(tokens, count):
        at = len(tokens) - num_prompt_tokens
        draft = answer[at : at + min(right, count)]
        return draft + [(t + 1) % 250 + 2 for t in answer[at + len(draft) : at + count]]

    return ScriptedDraftSource(script)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("right", [0, 1, 2, 5])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_rollback_after_rollback_gives_the_tokens_of_standard_decoding(
    loaded, temperature, right, count
):
    standard = engine(loaded).generate(request(loaded, temperature=temperature))
    source = partly_right(standard.output_ids, standard.num_prompt_tokens, right=right)

    row = engine(loaded).generate(
        request(loaded, Speculative(source, count), temperature=temperature)
    )

    assert row.output_ids == standard.output_ids
    if right < count:
        assert row.stats.num_draft_tokens > row.stats.num_accepted_tokens


@pytest.mark.parametrize("chunk", [1, 7, 16, 61])
def test_a_prompt_across_chunks_then_drafts_then_rollback(loaded, chunk):
    standard = engine(loaded).generate(request(loaded))
    source = partly_right(standard.output_ids, standard.num_prompt_tokens, right=1)

    row = engine(loaded, prefill_chunk_tokens=chunk).generate(
        request(loaded, Speculative(source, 4))
    )

    assert row.output_ids == standard.output_ids


def test_a_slot_that_held_rejected_drafts_serves_the_next_prompt_as_if_new(loaded):
    """Cold, after a longer answer with rejected tokens, and after a shorter one."""
    cold = engine(loaded).generate(request(loaded, text="Another prompt")).output_ids
    wrong = ScriptedDraftSource(lambda tokens, count: [5] * count)
    used = engine(loaded)
    for max_tokens in (90, 2, 40):
        used.generate(request(loaded, Speculative(wrong, 8), max_tokens=max_tokens))
        warm = used.generate(request(loaded, text="Another prompt"))
        assert warm.output_ids == cold


def test_drafts_up_to_the_last_position_of_the_context(loaded):
    """The block that would cross the end of the slot is cut before it is written."""
    standard = engine(loaded).generate(request(loaded, max_tokens=None))
    source = partly_right(standard.output_ids, standard.num_prompt_tokens, right=8)

    row = engine(loaded).generate(request(loaded, Speculative(source, 8), max_tokens=None))

    assert row.output_ids == standard.output_ids


def test_rejection_sampling_replays_whatever_happens_in_other_rows(loaded):
    wrong = Speculative(ScriptedDraftSource(lambda tokens, count: [5, 6, 7][:count]), 3)
    alone = engine(loaded).generate(request(loaded, wrong, verifier=RejectionVerifier()))
    busy = engine(loaded)
    tickets = busy.submit(
        [
            request(loaded, wrong, verifier=RejectionVerifier()),
            request(loaded, text="x", seed=1),
            request(loaded, Speculative(ScriptedDraftSource(lambda t, n: [9] * n), 7), seed=2),
        ]
    )
    while busy.step():
        if tickets[1].stats.num_output_tokens == 9:
            tickets[1].cancel()

    assert tickets[0].sequence.output_ids == alone.output_ids
