"""Structured answers of the demo model: one text in all modes, and always what the schema says."""

import json

import jsonschema
import pytest

from decoders.cost import EverythingPays
from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.gates import StandardFirst
from decoders.grammar import Grammar, GrammarCompiler, GrammarKind
from decoders.loader import load
from decoders.modes import Hybrid, Speculative, Standard
from decoders.params import FinishReason, SamplingParams
from decoders.request import Request

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 20},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 2},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["title", "tags", "count"],
}
PROMPTS = (
    "Describe a ball.", "Describe a house.", "An apple, as JSON.", "Sum up: it rains.",
    "Beschreibe einen Hund.", "Décris un chat.", "List two colours.", "What is 3 + 4?",
    "Extract: 5 red cars.", "Name a river.", "", '{"title": "a", "tags": ["red"], "count": 1}',
)  # fmt: skip


def test_a_dozen_prompts_give_one_valid_text_in_every_mode():
    demo = load("demo", dtype="float32", device="cpu", num_slots=6, max_length=256)
    compiler = GrammarCompiler(
        demo.tokenizer.vocabulary(demo.model.vocab_size), demo.tokenizer.eos_ids
    )
    grammar = compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)))
    engine = Engine(demo.model, demo.tokenizer, cost=EverythingPays())
    source = SuffixDraftSource(min_match=1)
    modes = [Standard(), Speculative(source, 4), Hybrid(source, [StandardFirst(4)], 4)]
    tickets = engine.submit(
        [
            Request(
                demo.tokenizer.encode_chat([{"role": "user", "content": prompt}]),
                SamplingParams(seed=seed, max_tokens=48, temperature=0.8),
                mode,
                constraint=grammar.constraint(),
            )
            for seed, prompt in enumerate(PROMPTS)
            for mode in modes
        ]
    )
    while engine.step():
        pass

    texts = [demo.tokenizer.decode(ticket.sequence.output_ids) for ticket in tickets]
    ended = 0
    for first in range(0, len(texts), len(modes)):
        assert len(set(texts[first : first + len(modes)])) == 1
        if tickets[first].sequence.finish_reason is FinishReason.STOP:
            ended += 1
            jsonschema.validate(json.loads(texts[first]), SCHEMA)
    assert ended >= len(PROMPTS) // 2
    assert sum(ticket.stats.num_accepted_tokens for ticket in tickets) > 0
