"""All rows of a step are verified together, as each would be alone and with one read from the device."""

import math
import random
from dataclasses import dataclass

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from decoders.draft import Draft
from decoders.engine import Engine
from decoders.modes import Speculative, Standard
from decoders.noise import (
    NO_TOKEN,
    Draw,
    Greedy,
    GumbelNoise,
    choose,
    gumbel,
    noise_for,
    position_keys,
)
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.sampling import Context, TokenCounts, process_rows
from decoders.testing import (
    Branches,
    CharacterTokenizer,
    EnumeratedNoise,
    ScriptedDraftSource,
    TableModel,
)
from decoders.verifiers.base import DraftedRow, Verdict
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier
from tests.decoding import VERIFIERS, drain, make_engine, make_request, modes

CPU = torch.device("cpu")
VOCAB = 600


def drawn_params(source):
    return SamplingParams(
        temperature=source.choice([0, 0, 0.3, 0.8, 1.0, 1.7]),
        top_k=source.choice([0, 0, 1, 40, 300, 2000]),
        top_p=source.choice([1.0, 1.0, 0.9, 0.3, 0.999]),
        min_p=source.choice([0, 0, 0.05, 0.5]),
        logit_bias=source.choice([{}, {}, {3: 5.0, 7: -math.inf}]),
        presence_penalty=source.choice([0, 0, 0.7]),
        repetition_penalty=source.choice([1, 1, 1.3]),
        seed=source.randrange(1 << 62),
    )


def alone(logits, params, counts, draft_ids):
    """The processors of one row with plain numbers, in the order in which they are documented."""
    scores = logits.clone()
    for token_id, bias in params.logit_bias.items():
        scores[:, token_id] += bias
    if params.penalizes:
        count = counts.along(draft_ids).to(scores.dtype)
        if params.repetition_penalty != 1:
            factor = params.repetition_penalty
            penalized = torch.where(scores > 0, scores / factor, scores * factor)
            scores = torch.where(counts.in_prompt | (count > 0), penalized, scores)
        scores = scores - params.frequency_penalty * count
        scores = scores - params.presence_penalty * (count > 0).to(scores.dtype)
    if params.greedy:
        return scores
    if params.temperature != 1:
        scores = (scores - scores.amax(-1, keepdim=True)) / params.temperature
    for row in scores:
        if params.min_p > 0:
            row[row < row.max() + math.log(params.min_p)] = -math.inf
        if 0 < params.top_k < VOCAB:
            row[row < row.sort(descending=True).values[params.top_k - 1]] = -math.inf
        if params.top_p < 1:
            ranked = row.sort(descending=True).values
            mass = (ranked - row.logsumexp(-1)).exp().cumsum(-1)
            row[row < ranked[min(int((mass < params.top_p).sum()), VOCAB - 1)]] = -math.inf
    return scores


def chosen_alone(scores, params, position):
    if params.greedy:
        return scores.argmax(-1).tolist()
    keys = position_keys(params.seed, position, len(scores))
    return (scores + gumbel(keys, VOCAB, CPU)).argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(20))
def test_a_batch_is_bit_for_bit_its_rows_one_by_one(seed, dtype):
    """Scores from bfloat16, so that there are ties."""
    source, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows = [drawn_params(source) for _ in range(source.randrange(1, 9))]
    drafts = [tuple(source.choices(range(VOCAB), k=source.randrange(4))) for _ in rows]
    counts = [TokenCounts([1, 2, 5], [5, 6], VOCAB, CPU) for _ in rows]
    contexts = [
        Context(params, len(draft) + 1, count, draft)
        for params, count, draft in zip(rows, counts, drafts, strict=True)
    ]
    shape = (sum(context.num_positions for context in contexts), VOCAB)
    scale = source.choice([0.1, 1.0, 4.0])
    logits = (torch.randn(shape, generator=generator) * scale).bfloat16().to(dtype)
    before = logits.clone()

    scores = process_rows(logits, contexts)
    draws = [Draw(noise_for(c.params, c.params.seed), 5, c.num_positions) for c in contexts]
    chosen = choose(scores, draws)

    parts = logits.split([context.num_positions for context in contexts])
    expected = [
        alone(part, c.params, c.counts, c.draft_ids)
        for part, c in zip(parts, contexts, strict=True)
    ]
    assert torch.equal(scores, torch.cat(expected))
    assert torch.equal(logits, before)
    assert chosen == [chosen_alone(s, row, 5) for s, row in zip(expected, rows, strict=True)]


def test_a_choice_is_bit_for_bit_that_over_the_whole_vocabulary():
    """Whatever is left out because it cannot win: scores from far apart to all alike, and ties."""
    generator = torch.Generator().manual_seed(7)
    spreads = torch.tensor([0.0, 0.1, 1.0, 5.0, 12.0, 60.0, 1e4]).repeat(3).unsqueeze(-1)
    for position in range(20):
        scores = torch.randn((len(spreads), VOCAB), generator=generator) * spreads
        scores[::2] = scores[::2].masked_fill(scores[::2] < 0, -math.inf)
        for part in (scores, scores[3:6], scores[5:7]):
            keys = position_keys(position, 0, len(part))
            expected = (part + gumbel(keys, VOCAB, CPU)).argmax(-1).tolist()

            assert GumbelNoise(position).choose(part, 0) == expected


def test_noise_of_other_kinds_may_share_a_batch():
    scores = torch.tensor([[0.1, 0.9], [0.9, 0.1], [0.0, 1.0]], dtype=torch.float64).log()
    branches = Branches()
    draws = [Draw(Greedy(), 0, 1), Draw(EnumeratedNoise(branches), 3, 1), Draw(Greedy(), 0, 1)]

    greedy, late, last = choose(scores, draws)

    assert (greedy, last) == ([1], [1])
    assert late[0] == 0
    assert branches.weight == pytest.approx(0.9)


@pytest.mark.parametrize("noise", [Greedy(), GumbelNoise(3)])
@pytest.mark.parametrize("bad", [[math.nan, 0.0], [0.0, math.nan], [-math.inf, -math.inf]])
def test_no_token_is_chosen_where_none_can_be(bad, noise):
    scores = torch.tensor([[9.0, 0.0], bad, [9.0, 0.0]])

    assert noise.choose(scores, 0) == [0, NO_TOKEN, 0]


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_verdict_ends_where_the_scores_are_not_numbers(verifier):
    scores = torch.tensor([[9.0, -9.0], [math.nan, 0.0], [9.0, -9.0]])
    rows = [DraftedRow(Draft((0, 0)), Greedy(), 0)]

    assert VERIFIERS[verifier]().verify(scores, rows) == [Verdict((0, NO_TOKEN), 1)]


@dataclass(frozen=True)
class Picky(CoupledVerifier):
    """Equal to its like, so that rows share it; fails where there is a draft."""

    def verify(self, scores, rows):
        if any(len(row.draft) for row in rows):
            raise RuntimeError("a draft")
        return super().verify(scores, rows)


def test_a_row_that_a_shared_verifier_fails_for_fails_alone(caplog):
    engine = make_engine()
    drafts = modes()["likeliest"]
    bad, good = engine.submit(
        [make_request(mode=drafts, verifier=Picky()), make_request(verifier=Picky())]
    )
    drain(engine)

    assert "a draft" in bad.error
    assert good.sequence.output_ids == make_engine().generate(make_request()).output_ids
    assert "a draft" in caplog.text


def test_rows_of_different_verifiers_share_a_step():
    def requests():
        return [
            make_request(mode=modes()["sampled"], verifier=verifier, seed=seed)
            for seed, verifier in enumerate(
                [CoupledVerifier(), RejectionVerifier(), CoupledVerifier(), RejectionVerifier()]
            )
        ]

    engine = make_engine()
    tickets = engine.submit(requests())
    drain(engine)

    for ticket, request in zip(tickets, requests(), strict=True):
        assert ticket.sequence.output_ids == make_engine().generate(request).output_ids


class Reads(TorchDispatchMode):
    """Counts what makes the host wait for the device; put around code that runs on the CPU."""

    _WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2")

    def __init__(self, monkeypatch):
        super().__init__()
        self.names = []
        for name in ("tolist", "cpu", "numpy"):
            read = getattr(torch.Tensor, name)

            def counted(tensor, *args, name=name, read=read):
                self.names.append(name)
                return read(tensor, *args)

            monkeypatch.setattr(torch.Tensor, name, counted)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self._WAITING:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class TensorModel(TableModel):
    """Reads nothing itself."""

    def forward(self, rows):
        count = sum(row.num_logits for row in rows)
        return torch.arange(count * VOCAB, dtype=torch.float32).reshape(count, VOCAB).sin()


@pytest.mark.parametrize("num_draft_tokens", [0, 3])
@pytest.mark.parametrize(
    "params",
    [
        [{"temperature": 0}],
        [{"temperature": 0.8}],
        [{"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01}],
        [{"temperature": 0}, {"temperature": 0.8, "frequency_penalty": 0.5}, {"top_p": 0.5}],
    ],
    ids=["greedy", "sampled", "truncated", "mixed"],
)
def test_a_step_reads_from_the_device_once(params, num_draft_tokens, monkeypatch):
    monkeypatch.setattr("decoders.noise.reading_is_free", lambda device: False)
    monkeypatch.setattr("decoders.sampling.reading_is_free", lambda device: False)
    tokenizer = CharacterTokenizer([chr(0x4E00 + i) for i in range(VOCAB)])
    engine = Engine(TensorModel(lambda prefix: (), VOCAB, num_slots=8), tokenizer)
    source = ScriptedDraftSource(lambda token_ids, count: [5] * count)
    mode = Speculative(source, num_draft_tokens) if num_draft_tokens else Standard()
    rows = [SamplingParams(max_tokens=20, seed=i, **params[i % len(params)]) for i in range(8)]
    tickets = engine.submit([Request([1, 2], row, mode) for row in rows])
    engine.step()

    with Reads(monkeypatch) as reads:
        engine.step()

    assert reads.names == ["tolist"]
    assert all(ticket.stats.num_steps == 2 for ticket in tickets)
