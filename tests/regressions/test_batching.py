"""Rows that accept different numbers of tokens in one step.

Batched speculation has kept the keys and values of rejected tokens for the rows that accepted less,
given them the positions of those that accepted more, and lost the batch dimension of sampled drafts.
"""

import random

import pytest

from decoders.engine import Engine
from decoders.loader import load
from decoders.modes import Speculative, Standard
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.testing import ScriptedDraftSource
from tests.decoding import VERIFIERS, drain, make_engine, make_request


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_ragged_acceptance_is_row_by_row_that_of_one_row(verifier):
    """Each row's draft is right for another number of tokens in every step."""

    def ragged(row):
        def script(tokens, count):
            good = (len(tokens) * (row + 3)) % 5
            return [min(5, tokens[-1] + 1)] * min(good, count) + [7] * (count - min(good, count))

        return Speculative(ScriptedDraftSource(script), 4)

    def requests():
        return [
            make_request("abc"[: row + 1], ragged(row), verifier=VERIFIERS[verifier](), seed=row)
            for row in range(3)
        ]

    engine = make_engine()
    tickets = engine.submit(requests())
    drain(engine)

    for ticket, request in zip(tickets, requests(), strict=True):
        alone = make_engine().generate(request)
        assert ticket.sequence.output_ids == alone.output_ids
        assert ticket.stats.accept_counts == alone.stats.accept_counts


@pytest.mark.parametrize("seed", range(3))
def test_on_a_model_too_with_rows_that_come_and_go(tiny_model, seed):
    loaded = load(str(tiny_model), device="cpu", dtype="float32", num_slots=3, max_length=128)
    choose = random.Random(seed)
    alone = {}

    def request(number, mode):
        text = "The cat sat on the mat. " * (1 + number % 3)
        params = SamplingParams(max_tokens=10 + number, seed=number, temperature=0.9)
        return Request(loaded.tokenizer.encode(text), params, mode)

    for number in range(7):
        engine = Engine(loaded.model, loaded.tokenizer)
        alone[number] = engine.generate(request(number, Standard())).output_ids

    def partly_right(number):
        prompt = len(request(number, Standard()).prompt_ids)

        def script(tokens, count):
            at = len(tokens) - prompt
            right = choose.randrange(count + 1)
            return alone[number][at : at + right] + [3] * (count - right)

        return Speculative(ScriptedDraftSource(script), 1 + number % 6)

    engine = Engine(loaded.model, loaded.tokenizer, prefill_chunk_tokens=11)
    tickets = engine.submit([request(number, partly_right(number)) for number in range(7)])
    drain(engine)

    assert {n: ticket.sequence.output_ids for n, ticket in enumerate(tickets)} == alone
    assert sum(ticket.stats.num_accepted_tokens for ticket in tickets) > 0
