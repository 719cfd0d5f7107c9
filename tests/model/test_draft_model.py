"""The demo model's own first layers as its draft model: the same answers, drafted."""

import pytest

from decoders.drafts.model import ModelDraftSource
from decoders.engine import Engine
from decoders.modes import Speculative, Standard
from decoders.pairing import load_draft
from decoders.params import SamplingParams
from decoders.request import Request
from gateway import config

pytestmark = pytest.mark.model
QUESTIONS = ("What is the capital of France?", "Count from one to ten.")


@pytest.fixture(scope="module")
def cut(demo):
    return load_draft(
        "demo", demo, dtype="float32", device="cpu", num_layers=24, cache_dir=config.load().cache
    )


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_first_layers_draft_and_the_answers_stay(demo, cut, temperature):
    prompts = [demo.tokenizer.encode_chat([{"role": "user", "content": q}]) for q in QUESTIONS]

    def answers(mode):
        engine = Engine(demo.model, demo.tokenizer)
        tickets = engine.submit(
            [
                Request(ids, SamplingParams(temperature=temperature, seed=i, max_tokens=12), mode)
                for i, ids in enumerate(prompts)
            ]
        )
        while engine.step():
            pass
        return [ticket.sequence for ticket in tickets]

    rows = answers(Speculative(ModelDraftSource(cut.model), 3))

    assert [row.output_ids for row in rows] == [row.output_ids for row in answers(Standard())]
    assert sum(row.stats.num_accepted_tokens for row in rows) > 0
