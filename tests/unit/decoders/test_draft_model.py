"""The draft model's own cache: whatever is accepted, drafts are those of a fresh pass."""

import random
from dataclasses import replace

import pytest
import torch

from decoders.cost import CostModel
from decoders.draft import NO_DRAFT, Dense, OneHot
from decoders.drafts.base import DraftRequest, PricedDraftSource
from decoders.drafts.model import ModelDraftSource
from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.gates import EntropyGate, StandardFirst
from decoders.loader import load
from decoders.models.base import Row
from decoders.modes import Hybrid, Speculative, Standard
from decoders.noise import Greedy, GumbelNoise, choose
from decoders.params import SamplingParams
from decoders.price import Price
from decoders.profile import Profile
from decoders.request import Request
from decoders.sampling import process
from decoders.testing import SampledDraftSource, ScriptedConstraint, TableModel
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier
from tests.decoding import ALPHABET, choosing, drain, make_engine, make_request

VOCAB = len(ALPHABET)


def table(law=choosing, **options):
    return TableModel(law, VOCAB, **{"num_slots": 4, "max_length": 64} | options)


def ask(source, tokens, count=3, *, number=0, noise=None, position=0):
    (draft,) = source.propose([DraftRequest(number, tokens, count, position, noise or Greedy())])
    return draft


def fresh(tokens, count=3, **options):
    return ask(ModelDraftSource(table()), tokens, count, **options)


# -- the cache -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_on_any_schedule_drafts_are_those_of_an_empty_cache(seed):
    """Rows that grow by any number of accepted tokens, in any company, asked or not."""
    source, draw = (
        ModelDraftSource(table(num_slots=3), prefill_chunk_tokens=12),
        random.Random(seed),
    )
    rows = {number: [draw.randrange(8) for _ in range(draw.randrange(2, 9))] for number in range(3)}
    noises = {number: GumbelNoise(number) if number else Greedy() for number in rows}
    compared = 0
    for step in range(25):
        asked = [number for number in rows if draw.random() < 0.8 and len(rows[number]) < 50]
        requests = [
            DraftRequest(number, rows[number], draw.randrange(1, 5), step, noises[number])
            for number in asked
        ]
        for request, draft in zip(requests, source.propose(requests), strict=True):
            row = rows[request.sequence_id]
            if len(draft):
                expected = fresh(
                    row, request.max_tokens, noise=request.noise, position=request.position
                )
                assert draft.token_ids == expected.token_ids
                compared += 1
            accepted = draw.randrange(len(draft) + 1)
            row += [*draft.token_ids[:accepted], draw.randrange(8)]
    assert compared > 20


def test_a_rejected_draft_costs_one_token_to_read_again():
    model = table()
    source = ModelDraftSource(model)
    tokens = [0, 1, 2]
    draft = ask(source, tokens, 3)
    before = model.num_tokens
    tokens.append((draft.token_ids[0] + 1) % 8)
    ask(source, tokens, 1)

    assert model.num_tokens - before == 1


def test_a_draft_that_was_cut_is_not_taken_for_read():
    """The next tokens happen to be those that were drawn: the last one is read again for its logits."""
    source, tokens = ModelDraftSource(table()), [0, 1, 2]
    tokens += ask(source, tokens, 4).token_ids[:2]

    assert ask(source, tokens).token_ids == fresh(tokens).token_ids


def test_rows_are_drawn_together_and_alike_alone():
    model = table()
    source = ModelDraftSource(model)
    rows = [[0, 1], [2, 2, 1], [3, 1, 0, 2]]
    drafts = source.propose([DraftRequest(i, row, 2 + i) for i, row in enumerate(rows)])

    assert model.num_forwards == 4
    assert [draft.token_ids for draft in drafts] == [
        fresh(row, 2 + i).token_ids for i, row in enumerate(rows)
    ]


def test_a_pass_draws_for_all_of_its_rows_by_one_choice(monkeypatch):
    passes = []

    def counted(scores, draws):
        passes.append(len(draws))
        return choose(scores, draws)

    monkeypatch.setattr("decoders.drafts.model.choose", counted)
    noises = [GumbelNoise(1), Greedy(), GumbelNoise(2)]
    requests = [DraftRequest(i, [i, 1], 1 + i, 0, noise) for i, noise in enumerate(noises)]
    ModelDraftSource(table()).propose(requests)

    assert passes == [3, 2, 1]


def test_one_row_that_may_say_nothing_ends_its_own_draft_alone():
    """Not even with its slot: that holds nothing wrong."""
    model = table()
    source = ModelDraftSource(model)
    mute = DraftRequest(
        0, [0, 1], 3, 0, GumbelNoise(1), process=lambda logits, _: logits - torch.inf
    )
    drafts = source.propose([mute, DraftRequest(1, [2, 1], 3, 0, GumbelNoise(2))])

    assert [len(draft) for draft in drafts] == [0, 3]
    assert source.price(mute).num_behind == 1


def test_a_long_prompt_is_read_in_pieces_and_stalls_nobody():
    model = table()
    source = ModelDraftSource(model, prefill_chunk_tokens=8)
    long, short = [0, 1, 2] * 6, [1, 2]
    lengths = []
    for _ in range(4):
        before = model.num_tokens
        drafts = source.propose([DraftRequest(0, long, 1), DraftRequest(1, short, 1)])
        lengths.append(len(drafts[0]))
        assert len(drafts[1]) == 1
        assert model.num_tokens - before <= 8
        short += [1]

    assert lengths == [0, 0, 1, 1]


def test_rows_beyond_the_slots_have_no_draft_until_one_is_forgotten():
    source = ModelDraftSource(table(num_slots=1))
    drafts = source.propose([DraftRequest(7, [0, 1], 2), DraftRequest(8, [0, 1], 2)])

    assert [len(draft) for draft in drafts] == [2, 0]
    assert source.price(DraftRequest(8, [0, 1], 2)) is None
    source.forget(7)
    source.forget(7)
    assert ask(source, [2, 1], number=8).token_ids == fresh([2, 1]).token_ids


def test_the_draft_models_context_ends_its_drafts():
    source = ModelDraftSource(table(max_length=6))

    assert [len(ask(source, [0] * count, 4)) for count in (2, 4, 6, 7)] == [4, 3, 1, 0]
    assert source.price(DraftRequest(0, [0] * 7, 4)) is None


def test_logits_that_are_not_numbers_end_the_draft_and_leave_no_trace():
    class Broken(TableModel):
        broken = True

        def forward(self, rows):
            logits = super().forward(rows)
            return logits * torch.nan if self.broken else logits

    model = Broken(choosing, VOCAB)
    source = ModelDraftSource(model)
    tokens = [0, 1, 2]

    assert len(ask(source, tokens)) == 0
    model.broken = False
    assert ask(source, tokens).token_ids == fresh(tokens).token_ids


# -- the law ---------------------------------------------------------------------------------------


def test_the_law_is_what_was_drawn_from_and_one_hot_where_nothing_was():
    tokens, noise = [0, 1, 2], GumbelNoise(3)
    draft = fresh(tokens, noise=noise)

    assert isinstance(draft.law, Dense)
    prefixes = [(*tokens, *draft.token_ids[:i]) for i in range(len(draft))]
    expected = torch.tensor([choosing(prefix) for prefix in prefixes], dtype=torch.float64)
    assert torch.allclose(draft.law.draft_probs, expected, atol=1e-12)
    assert isinstance(fresh(tokens).law, OneHot)


def test_the_law_is_not_worked_out_where_no_verifier_looks_at_it():
    request = DraftRequest(0, [0, 1, 2], 3, 0, GumbelNoise(3), wants_law=False)
    (draft,) = ModelDraftSource(table()).propose([request])

    assert draft.token_ids == fresh([0, 1, 2], noise=GumbelNoise(3)).token_ids
    assert isinstance(draft.law, OneHot)


def test_it_draws_what_the_target_will_choose_where_both_agree():
    """The same noise at the same positions: every token of a draft by the target itself stands."""
    for seed in range(5):
        source = ModelDraftSource(table())
        row = make_engine().generate(make_request(mode=Speculative(source, 4), seed=seed))

        assert row.stats.num_draft_tokens == row.stats.num_accepted_tokens > 0
        expected = make_engine().generate(make_request(seed=seed))
        assert row.output_ids == expected.output_ids


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.5},
        {"temperature": 0.9, "top_k": 2, "frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"temperature": 0, "repetition_penalty": 1.8, "logit_bias": {3: 2.0}},
    ],
)
def test_the_rows_processors_apply_to_the_draft_model_too(params):
    source = ModelDraftSource(table())
    row = make_engine().generate(make_request(mode=Speculative(source, 4), **params))

    assert row.stats.num_draft_tokens == row.stats.num_accepted_tokens > 0


def test_where_nothing_is_allowed_nothing_is_drawn():
    source = ModelDraftSource(table())
    request = DraftRequest(
        0, [0, 1], 3, 0, GumbelNoise(1), process=lambda logits, drafted: logits - torch.inf
    )

    assert len(source.propose([request])[0]) == 0


# -- in the engine ---------------------------------------------------------------------------------


def test_an_end_frees_the_slot_whatever_the_end():
    source = ModelDraftSource(table(num_slots=2))
    engine = make_engine()
    mode = Speculative(source, 3)
    tickets = engine.submit([make_request(mode=mode, seed=i, max_tokens=40) for i in range(2)])
    for _ in range(3):
        engine.step()
    tickets[0].cancel()
    engine.submit([make_request(mode=mode, seed=9)])
    drain(engine)

    assert source.price(DraftRequest(100, [0, 1], 1)) is not None
    assert len(source._free) == 2


def test_a_gate_that_is_shut_costs_no_pass_of_the_draft_model():
    model = table()
    for gate in (StandardFirst(100), EntropyGate(1e-9)):
        mode = Hybrid(ModelDraftSource(model), [gate], 4)
        row = make_engine().generate(make_request(mode=mode))

        assert set(row.stats.why_k) <= {"gate", "end"}
    assert model.num_forwards == 0


def test_a_draft_model_that_is_not_worth_its_time_is_not_run():
    model = table()
    cost = CostModel(Profile({(1, 1): 0.01, (1, 9): 0.011}), frozen=True)
    dear = ModelDraftSource(model, Profile({(1, 1): 0.01}))
    row = make_engine(cost=cost).generate(make_request(mode=Speculative(dear, 4)))

    assert model.num_forwards == 0
    assert set(row.stats.why_k) <= {"cost", "end"}


def test_only_what_was_ruled_is_drawn():
    model = table()
    cost = CostModel(Profile({(1, 1): 0.01, (1, 9): 0.011}), frozen=True)
    source = ModelDraftSource(model, Profile({(1, 1): 0.002}))
    row = make_engine(cost=cost).generate(make_request(mode=Speculative(source, 8)))

    assert 0 < row.stats.longest_draft < 8
    assert model.num_forwards == row.stats.num_draft_tokens
    assert row.output_ids == make_engine().generate(make_request()).output_ids


def test_while_it_reads_a_prompt_the_row_says_so():
    source = ModelDraftSource(table(), prefill_chunk_tokens=4)
    row = make_engine().generate(make_request("abcdabcdabcd", mode=Speculative(source, 2)))

    assert row.stats.why_k["behind"] == 3


def test_a_row_says_so_to_the_last_token():
    """13 tokens, four a step: after the third step one is missing, which is still one too many."""
    source = ModelDraftSource(table(), prefill_chunk_tokens=4)
    row = make_engine().generate(make_request("abcdabcdab", mode=Speculative(source, 2)))

    assert row.stats.why_k["behind"] == 3
    assert "no_match" not in row.stats.why_k


def test_nothing_to_say_after_a_draft_that_stood_whole_is_no_reading():
    class Hoarse(ModelDraftSource):
        num_asked = 0

        def propose(self, requests):
            self.num_asked += 1
            drafts = super().propose(requests)
            return drafts if self.num_asked % 2 else [NO_DRAFT for _ in drafts]

    row = make_engine().generate(make_request(mode=Speculative(Hoarse(table()), 3)))

    assert row.stats.num_accepted_tokens == row.stats.num_draft_tokens > 0
    assert row.stats.why_k["no_match"] > 1
    assert "behind" not in row.stats.why_k


def test_a_price_that_cannot_be_named_costs_no_answer(caplog):
    class Broken(ModelDraftSource):
        def price(self, request):
            raise RuntimeError("no price")

    row = make_engine().generate(make_request(mode=Speculative(Broken(table()), 3)))

    assert row.output_ids == make_engine().generate(make_request()).output_ids
    assert "failed to name its price" in caplog.text


def test_only_a_source_that_computes_has_a_price():
    source = ModelDraftSource(table(), Profile({(1, 1): 0.25}), prefill_chunk_tokens=2)

    assert isinstance(source, PricedDraftSource)
    assert not isinstance(SuffixDraftSource(), PricedDraftSource)
    assert source.price(DraftRequest(0, [0, 1, 2], 3)) == Price(Profile({(1, 1): 0.25}), 3, 2)
    ask(source, [0, 1])
    assert source.price(DraftRequest(0, [0, 1, 2], 3)).num_behind == 1


@pytest.mark.parametrize(("verifier", "cut"), [(CoupledVerifier, True), (RejectionVerifier, False)])
def test_a_drawn_draft_is_cut_by_the_constraint_where_no_law_is_wanted(verifier, cut):
    mode = Speculative(SampledDraftSource(choosing), 4)
    request = replace(
        make_request(mode=mode, verifier=verifier()),
        constraint=ScriptedConstraint(lambda output: {len(output) % 3}, VOCAB),
    )
    row = make_engine().generate(request)

    assert row.stats.num_draft_tokens
    assert ("constraint" in row.stats.why_k) == cut
    assert (row.stats.num_draft_tokens == row.stats.num_accepted_tokens) == cut


def test_free_and_priced_drafts_share_a_step():
    suffix, model = SuffixDraftSource(min_match=1), ModelDraftSource(table())
    engine = make_engine()
    modes = [Speculative(suffix, 4), Speculative(model, 3), Standard()]
    tickets = engine.submit([make_request(mode=mode, seed=4) for mode in modes])
    drain(engine)

    assert len({tuple(ticket.sequence.output_ids) for ticket in tickets}) == 1
    assert set(tickets[0].stats.by_source) == {"suffix"}
    assert set(tickets[1].stats.by_source) == {"model"}


# -- real transformers -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return load(str(tiny_model), device="cpu", dtype="float32", num_slots=4, max_length=96)


@pytest.fixture(scope="module")
def cut(tiny_model):
    return load(
        str(tiny_model), device="cpu", dtype="float32", num_slots=3, max_length=96, num_layers=1
    )


def cacheless(model, tokens, count, noise, params, position):
    """The draft by one fresh pass over the whole sequence for each token."""
    drawn = []
    for i in range(count):
        (logits,) = [model.forward([Row(2, 0, (*tokens, *drawn), 1)])]
        drawn += noise.choose(process(logits, params, None, drawn), position + i)
    return tuple(drawn)


@pytest.mark.parametrize("seed", range(3))
def test_a_transformers_draft_is_that_of_a_pass_without_a_cache(cut, tiny_model, seed):
    """Two rows at random lengths and accept counts; the third slot is left for the fresh passes."""
    source, draw = ModelDraftSource(cut.model), random.Random(seed)
    params = SamplingParams(temperature=0.7, top_k=20)
    noises = [GumbelNoise(seed), GumbelNoise(seed + 1)]
    rows = [[draw.randrange(200) for _ in range(draw.randrange(1, 20))] for _ in range(2)]
    for _ in range(6):
        requests = [
            DraftRequest(
                i,
                rows[i],
                draw.randrange(1, 4),
                len(rows[i]),
                noises[i],
                process=lambda logits, drafted: process(logits, params, None, drafted),
            )
            for i in range(2)
        ]
        for i, draft in enumerate(source.propose(requests)):
            expected = cacheless(
                cut.model, rows[i], requests[i].max_tokens, noises[i], params, len(rows[i])
            )
            assert draft.token_ids == expected
            rows[i] += [*draft.token_ids[: draw.randrange(len(draft) + 1)], draw.randrange(200)]


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_model_cut_to_its_first_layer_drafts_for_the_whole(tiny, cut, temperature):
    prompts = [tiny.tokenizer.encode(text) for text in ("abcabc", "the end of it", "x")]
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=16) for i in range(3)]

    def answers(mode, **options):
        engine = Engine(tiny.model, tiny.tokenizer)
        tickets = engine.submit(
            [Request(ids, p, mode, **options) for ids, p in zip(prompts, params, strict=True)]
        )
        drain(engine)
        return [ticket.sequence for ticket in tickets]

    rows = answers(Speculative(ModelDraftSource(cut.model), 3))

    assert [row.output_ids for row in rows] == [row.output_ids for row in answers(Standard())]
    assert sum(row.stats.num_draft_tokens for row in rows) > 20
    judged = answers(Speculative(ModelDraftSource(cut.model), 3), verifier=RejectionVerifier())
    assert all(row.stats.num_draft_tokens for row in judged)
