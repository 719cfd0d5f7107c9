"""The prompt's own log-probabilities: of every token but the first, however the prompt is computed."""

import math
from dataclasses import replace

import pytest

from decoders.params import FinishReason
from tests.decoding import TOKENIZER, VERIFIERS, choosing, drain, make_engine, make_request, modes

PROMPT = "abcabdacbbacaabcfedabcabdacbbacaabcfed" * 3


def expected(prompt):
    ids = TOKENIZER.encode(prompt)
    laws = [choosing(ids[:at]) for at in range(1, len(ids))]
    return [math.log(law[i]) if law[i] else -math.inf for law, i in zip(laws, ids[1:], strict=True)]


def scores(ticket):
    return [entry.logprob for entry in ticket.prompt_logprobs]


@pytest.mark.parametrize("mode", modes())
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("chunk", [1, 7, 63, 64, 65, 256])
def test_they_are_the_models_own_in_chunks_of_any_size(chunk, verifier, mode):
    engine = make_engine(prefill_chunk_tokens=chunk, max_length=200)
    request = make_request(
        PROMPT, modes()[mode], verifier=VERIFIERS[verifier](), prompt_logprobs=2, top_k=2
    )
    plain = make_request(PROMPT, modes()[mode], verifier=VERIFIERS[verifier](), top_k=2)
    scored, other = engine.submit([request, replace(plain, scope="other")])
    drain(engine)

    assert scores(scored) == pytest.approx(expected(PROMPT))
    assert [entry.token_id for entry in scored.prompt_logprobs] == TOKENIZER.encode(PROMPT)[1:]
    assert all(len(entry.top) == 2 for entry in scored.prompt_logprobs)
    assert scored.sequence.output_ids == other.sequence.output_ids
    assert other.prompt_logprobs == []


def test_what_a_slot_holds_already_is_computed_again_for_them_and_may_be_copied_from_them():
    engine = make_engine(max_length=200)
    engine.generate(make_request(PROMPT))
    scored, after = engine.submit([make_request(PROMPT, prompt_logprobs=0), make_request(PROMPT)])
    drain(engine)

    assert scores(scored) == pytest.approx(expected(PROMPT))
    assert scored.stats.num_cached_tokens == 0
    assert after.stats.num_cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("mode", modes())
@pytest.mark.parametrize("prompt", ["a", "ab", PROMPT])
def test_without_an_answer_only_the_prompt_is_read(prompt, mode):
    pieces = []
    engine = make_engine(max_length=200)
    request = make_request(
        prompt, modes()[mode], max_tokens=0, prompt_logprobs=0, listener=pieces.append
    )
    (ticket,) = engine.submit([request])
    drain(engine)

    assert scores(ticket) == pytest.approx(expected(prompt))
    assert ticket.sequence.output_ids == []
    assert [piece.finish_reason for piece in pieces] == [FinishReason.LENGTH]
    assert (ticket.stats.num_steps, ticket.stats.num_drafts, engine.num_running) == (0, 0, 0)


def test_no_pass_has_more_rows_of_logits_than_a_few():
    engine = make_engine(max_length=200)
    wanted = []
    forward = engine.model.forward

    def watch(rows):
        wanted.append(sum(row.num_logits for row in rows))
        return forward(rows)

    engine.model.forward = watch
    engine.generate(make_request(PROMPT, prompt_logprobs=0, max_tokens=1))

    assert max(wanted) <= 64
    assert sum(wanted) == len(PROMPT)


def test_a_row_that_is_cancelled_in_its_prompt_gives_back_its_slot():
    engine = make_engine(max_length=200, prefill_chunk_tokens=16)
    (ticket,) = engine.submit([make_request(PROMPT, prompt_logprobs=0)])
    engine.step()
    ticket.cancel()
    drain(engine)

    assert scores(ticket) == pytest.approx(expected(PROMPT)[:16])
    assert engine.num_running == 0
