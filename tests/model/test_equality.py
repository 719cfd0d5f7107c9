"""On the real model in float32, the three modes give the same tokens for the same seed.

Forward passes over different numbers of rows differ in the last bits, so a near tie may fall the
other way. Every mismatch is therefore held against the margin by which its token was chosen: a small
one is counted and allowed a few times, anything else is a failure.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.gates import ContentTokens, FunctionWords, StandardFirst
from decoders.models.base import Row
from decoders.modes import Hybrid, Speculative, Standard
from decoders.noise import gumbel, position_keys
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.sampling import process

PROMPTS = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "prompts.jsonl").read_text().splitlines()
]
MAX_TOKENS = 16
NEAR_TIE = 1e-3
"""Rounding moves a float32 logit of this model by about 1e-5; differences below this are ties."""
MAX_MISMATCHES = 4

pytestmark = pytest.mark.model


@dataclass(frozen=True)
class Case:
    """One prompt at one temperature; the seed is its own."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams


@pytest.fixture(scope="module")
def cases(demo):
    assert len(PROMPTS) == 40
    return [
        Case(
            tuple(demo.tokenizer.encode_chat([{"role": "user", "content": prompt["text"]}])),
            # Every second one is sampled; each at both temperatures would take twice as long.
            SamplingParams(temperature=0.8 * (seed % 2), seed=seed, max_tokens=MAX_TOKENS),
        )
        for seed, prompt in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def modes(demo):
    pieces = (
        demo.tokenizer.token_bytes(token_id).decode(errors="replace")
        for token_id in range(demo.model.vocab_size)
    )
    words = FunctionWords(pieces)
    source = SuffixDraftSource()
    return {
        "standard": Standard(),
        "speculative": Speculative(source, 8),
        "hybrid": Hybrid(source, [StandardFirst(10)], 8),
        "content": Hybrid(source, [ContentTokens(words)], 8),
    }


def decode_alone(demo, cases, mode):
    engine = Engine(demo.model, demo.tokenizer)
    return [engine.generate(Request(c.prompt_ids, c.params, mode)) for c in cases]


def decode_together(demo, cases, mode):
    engine = Engine(demo.model, demo.tokenizer, max_queue=1000)
    tickets = engine.submit([Request(c.prompt_ids, c.params, mode) for c in cases])
    while engine.step():
        pass
    return [ticket.sequence for ticket in tickets]


@pytest.fixture(scope="module")
def reference(demo, cases, modes):
    return [row.output_ids for row in decode_alone(demo, cases, modes["standard"])]


def margin(demo, case, output, position):
    """By how much the chosen token led at ``position``, in a fresh pass over the shared prefix."""
    prefix = (*case.prompt_ids, *output[:position])
    logits = demo.model.forward([Row(0, 0, prefix, 1)])
    scores = process(logits, case.params)
    if not case.params.greedy:
        noise = gumbel(
            position_keys(case.params.seed, position, 1), scores.shape[-1], scores.device
        )
        scores = scores + noise
    best, second = scores.topk(2).values[0].tolist()
    return best - second


def assert_same(demo, cases, outputs, expected, what):
    mismatches = 0
    for case, output, wanted in zip(cases, outputs, expected, strict=True):
        if output == wanted:
            continue
        pairs = zip(output, wanted, strict=False)
        position = next(i for i, (a, b) in enumerate(pairs) if a != b)
        lead = margin(demo, case, wanted, position)
        assert lead < NEAR_TIE, f"{what}: a token with a lead of {lead} changed at {position}"
        mismatches += 1
    print(f"{what}: {mismatches} of {len(cases)} answers differ, all at near ties")  # noqa: T201 - shown with -s
    assert mismatches <= MAX_MISMATCHES


@pytest.mark.parametrize(
    ("mode", "decode"),
    [
        ("speculative", decode_alone),
        ("hybrid", decode_together),
        ("content", decode_together),
    ],
)
def test_every_mode_gives_the_standard_answer(demo, cases, modes, reference, mode, decode):
    rows = decode(demo, cases, modes[mode])

    assert_same(demo, cases, [row.output_ids for row in rows], reference, mode)
    accepted = sum(row.stats.num_accepted_tokens for row in rows)
    assert accepted > 0, "no draft was accepted, so nothing was tried"


def test_in_a_mixed_batch_with_cancellations_every_mode_gives_the_standard_answer(
    demo, cases, modes, reference
):
    source = random.Random(11)
    engine = Engine(demo.model, demo.tokenizer, max_queue=1000, prefill_chunk_tokens=200)
    jobs = [(i, source.choice(list(modes.values()))) for i in range(len(cases))]
    source.shuffle(jobs)
    doomed = []
    tickets = {}
    for i, mode in jobs:
        if source.random() < 0.25:
            victim = cases[source.randrange(len(cases))]
            doomed += engine.submit([Request(victim.prompt_ids, victim.params, mode)])
        (tickets[i],) = engine.submit([Request(cases[i].prompt_ids, cases[i].params, mode)])
    while engine.step():
        running = [ticket for ticket in doomed if ticket.slot >= 0 and not ticket.done.is_set()]
        if running and source.random() < 0.2:
            source.choice(running).cancel()

    outputs = [tickets[i].sequence.output_ids for i in range(len(cases))]
    assert_same(demo, cases, outputs, reference, "mixed batch")
    assert any(ticket.cancelled for ticket in doomed)
    assert sum(ticket.stats.num_accepted_tokens for ticket in tickets.values()) > 0
    assert engine.num_running == 0
