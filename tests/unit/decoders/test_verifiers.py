"""Verifiers with real noise: replays, acceptance, and the engine's account of a lossy one."""

import math

import pytest
import torch

from decoders.draft import Dense, Draft
from decoders.engine import Engine
from decoders.modes import Speculative, Standard
from decoders.noise import Greedy, GumbelNoise
from decoders.params import FinishReason, SamplingParams
from decoders.request import Request
from decoders.testing import CharacterTokenizer, SampledDraftSource, ScriptedDraftSource, TableModel
from decoders.verifiers.base import DraftedRow
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.lossy import total_variation
from decoders.verifiers.rejection import RejectionVerifier, residual_distribution
from decoders.verifiers.typical import TypicalVerifier

TOKENIZER = CharacterTokenizer("abcd")
TARGET = (0.4, 0.3, 0.2, 0.1)


def law(prefix):
    return TARGET[prefix[-1] :] + TARGET[: prefix[-1]]


def run(mode, verifier, **params):
    engine = Engine(TableModel(law, 4, max_length=400), TOKENIZER)
    return engine.generate(Request([0], SamplingParams(**params), mode, verifier))


def rejected(scores, draft, noise):
    (verdict,) = RejectionVerifier().verify(scores, [DraftedRow(draft, noise, 0)])
    return verdict


def drafted(script, count=3):
    return Speculative(ScriptedDraftSource(script), count)


def test_rejection_accepts_as_often_as_the_laws_agree():
    """Σ min(target, draft) of positions; fixed seeds, 5 standard errors."""
    target, stated = torch.tensor(TARGET).double(), torch.tensor([0.1, 0.4, 0.4, 0.1]).double()
    scores = target.log().expand(2, 4)
    accepted = 0
    for seed in range(3000):
        noise = GumbelNoise(seed)
        token = noise.choose(stated.log().unsqueeze(0), 0)[0]
        draft = Draft((token,), law=Dense(stated.unsqueeze(0)))
        accepted += rejected(scores, draft, noise).num_accepted
    expected = torch.minimum(target, stated).sum().item()

    assert accepted / 3000 == pytest.approx(expected, abs=5 * math.sqrt(0.21 / 3000))


def test_rejection_emits_the_targets_law_with_real_noise():
    """The same by frequencies: draft, coin, residual and bonus all come from one seed."""
    target, stated = torch.tensor(TARGET).double(), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    scores = target.log().expand(2, 4)
    first, second = torch.zeros(4), torch.zeros(4)
    for seed in range(4000):
        noise = GumbelNoise(seed)
        token = noise.choose(stated.log().unsqueeze(0), 0)[0]
        draft = Draft((token,), law=Dense(stated.unsqueeze(0)))
        verdict = rejected(scores, draft, noise)
        first[verdict.token_ids[0]] += 1
        if len(verdict.token_ids) == 2:
            second[verdict.token_ids[1]] += 1

    bound = 5 * 0.5 / math.sqrt(4000)
    assert (first / 4000).tolist() == pytest.approx(TARGET, abs=bound)
    assert (second / second.sum()).tolist() == pytest.approx(TARGET, abs=2 * bound)


def test_the_residual_is_what_the_target_has_more_of():
    target, stated = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])

    assert residual_distribution(target, stated).tolist() == pytest.approx([0.75, 0.25, 0])


def test_equal_laws_leave_the_target_as_the_residual():
    target = torch.tensor([0.5, 0.5])

    assert torch.equal(target, residual_distribution(target, target))


def test_at_temperature_0_rejection_gives_the_greedy_text():
    expected = run(Standard(), CoupledVerifier(), temperature=0, max_tokens=30).output_ids
    for mode in (
        Standard(),
        drafted(lambda tokens, count: [tokens[-1]] * count),
        Speculative(SampledDraftSource(lambda prefix: (0.25,) * 4), 3),
    ):
        assert run(mode, RejectionVerifier(), temperature=0, max_tokens=30).output_ids == expected


def test_a_seed_replays_the_text_of_every_verifier():
    for make in (CoupledVerifier, RejectionVerifier, lambda: TypicalVerifier(0.9)):
        outputs = {
            tuple(
                run(
                    Speculative(SampledDraftSource(lambda prefix: (0.25,) * 4), 3),
                    make(),
                    seed=8,
                    max_tokens=40,
                ).output_ids
            )
            for _ in range(2)
        }
        assert len(outputs) == 1


def test_seeds_give_different_texts():
    texts = {
        tuple(
            run(
                drafted(lambda t, n: [0] * n), RejectionVerifier(), seed=s, max_tokens=20
            ).output_ids
        )
        for s in range(12)
    }

    assert len(texts) == 12


def test_the_engine_sums_the_discrepancy_and_the_budget_holds():
    verifier = TypicalVerifier(2 / 3)
    row = run(drafted(lambda t, n: [t[-1]] * n, 1), verifier, seed=3, max_tokens=60)

    assert 0 < row.stats.distortion <= 2 / 3
    assert row.stats.distortion == pytest.approx(verifier.distortion)
    assert row.stats.distortion == pytest.approx(0.6)  # once an a after an a: 1 - .4
    assert verifier.exhausted
    assert run(drafted(lambda t, n: [0] * n), RejectionVerifier(), seed=3).stats.distortion == 0.0


def test_discrepancy_of_tokens_behind_the_end_is_not_counted():
    """The answer ends at its second token; the verdict had four."""
    mode = drafted(lambda tokens, count: [0, 0, 0][:count], 3)
    engine = Engine(
        TableModel(lambda prefix: (0.9, 0.1), 2), CharacterTokenizer("ab"), prefill_chunk_tokens=8
    )
    verifier = TypicalVerifier(1.0)
    params = SamplingParams(max_tokens=9, stop=("aa",), seed=2)
    row = engine.generate(Request([0], params, mode, verifier))

    assert row.output_ids == [0, 0]
    assert row.stats.distortion == pytest.approx(2 * 0.1)
    assert verifier.distortion == pytest.approx(3 * 0.1)


def test_a_lossy_verifier_that_two_rows_share_fails_the_second():
    verifier = TypicalVerifier(0.5)
    engine = Engine(TableModel(law, 4), TOKENIZER)
    request = Request([0], SamplingParams(max_tokens=5), verifier=verifier)
    first, second = engine.submit([request, request])
    while engine.step():
        pass

    assert first.sequence.finish_reason is FinishReason.ERROR or (
        second.sequence.finish_reason is FinishReason.ERROR
    )
    assert "give each request its own" in f"{first.error}{second.error}"


def test_total_variation_is_0_for_equal_and_1_for_disjoint_laws():
    left, right = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])

    assert total_variation(left, left) == 0.0
    assert total_variation(left, right) == 1.0


def test_a_greedy_row_takes_the_bonus_of_its_own_row_of_scores():
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    assert rejected(scores, Draft((0,)), Greedy()).token_ids == (0, 1)
    assert rejected(scores, Draft((1,)), Greedy()).token_ids == (0,)
