"""The processors give the documented laws, and the noise is a pure function of its keys."""

import math

import pytest
import torch

from decoders.noise import (
    NO_TOKEN,
    Greedy,
    GumbelNoise,
    Purpose,
    _noisy_best,
    gumbel,
    noise_for,
    position_keys,
    random_bits,
)
from decoders.params import SamplingParams
from decoders.sampling import TokenCounts, process

CPU = torch.device("cpu")
GOLDEN_BITS = [
    [5876733520225071, 6315957190297641, 3486904274089342],
    [2488090916427887, 1944370228470169, 7918266355572978],
]


def law(logits, **params):
    return process(torch.tensor([logits]), SamplingParams(**params)).softmax(-1)[0].tolist()


def logs(*probabilities):
    return [math.log(p) for p in probabilities]


def test_temperature_divides_the_logits():
    assert law(logs(0.8, 0.2), temperature=2.0) == pytest.approx([2 / 3, 1 / 3])


def test_the_smallest_temperature_still_tells_tokens_apart():
    scores = process(torch.tensor([[30.0, 30.001, -80.0]]), SamplingParams(temperature=1e-6))

    assert torch.isfinite(scores[:, 1]).all()
    assert scores.softmax(-1)[0].tolist() == pytest.approx([0, 1, 0])


def test_top_k_keeps_the_most_likely_and_renormalises():
    assert law(logs(0.5, 0.3, 0.2), top_k=2) == pytest.approx([0.625, 0.375, 0])


def test_top_k_keeps_ties_with_the_last_token_kept():
    assert law(logs(0.4, 0.2, 0.2, 0.2), top_k=2) == pytest.approx([0.4, 0.2, 0.2, 0.2])


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    assert law(logs(0.5, 0.3, 0.2), top_p=0.5) == pytest.approx([1, 0, 0])
    assert law(logs(0.5, 0.3, 0.2), top_p=0.51) == pytest.approx([0.625, 0.375, 0])


def test_top_p_over_a_wide_vocabulary_equals_a_full_sort():
    """The nucleus may be wider than the candidates that are looked at first."""
    logits = torch.linspace(0, 1, 5000).flip(0)
    kept = (process(logits.unsqueeze(0), SamplingParams(top_p=0.9))[0] > -math.inf).sum().item()
    mass = logits.softmax(0).cumsum(0)

    assert kept == (mass < 0.9).sum().item() + 1
    assert kept > 256


def test_min_p_is_relative_to_the_most_likely_token():
    assert law(logs(0.5, 0.3, 0.2), min_p=0.5) == pytest.approx([0.625, 0.375, 0])


def test_min_p_applies_after_temperature():
    assert law(logs(0.8, 0.2), temperature=2.0, min_p=0.4) == pytest.approx([2 / 3, 1 / 3])
    assert law(logs(0.8, 0.2), min_p=0.4) == pytest.approx([1, 0])


def test_logit_bias_adds_and_can_ban():
    assert law(logs(0.5, 0.5), logit_bias={0: math.log(3)}) == pytest.approx([0.75, 0.25])
    assert law(logs(0.5, 0.5), logit_bias={0: -math.inf}) == pytest.approx([0, 1])


def test_a_bias_on_a_token_beyond_the_vocabulary_changes_nothing():
    assert law(logs(0.5, 0.5), logit_bias={7: 5.0}) == pytest.approx([0.5, 0.5])


def test_processing_leaves_the_raw_logits_alone():
    """Log-probabilities are reported from the raw logits."""
    logits = torch.tensor([logs(0.5, 0.3, 0.2)])
    before = logits.clone()
    counts = TokenCounts([0], [1], 3, CPU)

    process(
        logits,
        SamplingParams(logit_bias={0: 3.0}, presence_penalty=1, top_k=2, repetition_penalty=2),
        counts,
    )

    assert torch.equal(before, logits)


def test_penalties_see_the_draft_tokens_before_each_position():
    counts = TokenCounts([], [0], 3, CPU)
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25)

    scores = process(torch.zeros(3, 3), params, counts, [1, 1])

    expected = [[-0.75, 0, 0], [-0.75, -0.75, 0], [-0.75, -1.25, 0]]
    assert scores.tolist() == expected


def test_repetition_penalty_covers_the_prompt_and_both_signs():
    counts = TokenCounts([0], [1], 3, CPU)

    scores = process(torch.tensor([[2.0, -2.0, 2.0]]), SamplingParams(repetition_penalty=2), counts)

    assert scores.tolist() == [[1.0, -4.0, 2.0]]


def test_the_bits_are_splitmix64():
    """Golden values: a change of the generator would make every logged seed unreplayable."""
    assert random_bits(position_keys(0, 0, 2), 3, CPU).tolist() == GOLDEN_BITS


def test_noise_depends_on_seed_position_and_token_alone():
    together = gumbel(position_keys(7, 10, 4), 1000, CPU)

    assert torch.equal(together[2:3], gumbel(position_keys(7, 12, 1), 1000, CPU))
    assert torch.equal(together[:, :10], gumbel(position_keys(7, 10, 4), 10, CPU))
    assert not torch.equal(together, gumbel(position_keys(8, 10, 4), 1000, CPU))
    assert not torch.equal(together[0], together[1])


def test_seeds_differ_by_their_64_bits():
    scores = torch.zeros(1, 1000)

    chosen = {GumbelNoise(seed).choose(scores, 0)[0] for seed in range(50)}

    assert len(chosen) > 40
    assert GumbelNoise(-1).choose(scores, 0) == GumbelNoise((1 << 64) - 1).choose(scores, 0)
    assert GumbelNoise(3).choose(scores, 0) == GumbelNoise(3 + (1 << 64)).choose(scores, 0)


def test_the_noise_is_standard_gumbel():
    """Fixed seed, so this cannot flicker; the bounds are 5 standard errors."""
    noise = gumbel(position_keys(1, 0, 20), 50_000, CPU).flatten()
    count = noise.numel()

    assert torch.isfinite(noise).all()
    assert noise.mean().item() == pytest.approx(0.5772156649, abs=5 * 1.2825 / math.sqrt(count))
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    below = (noise <= 0).double().mean().item()
    assert below == pytest.approx(math.exp(-1), abs=5 * 0.5 / math.sqrt(count))


def key_of(number):
    """The key with which token id 0 has these 64 bits: SplitMix64 backwards."""

    def unfold(value, shift):
        folded = value
        for _ in range(64 // shift):
            folded = value ^ (folded >> shift)
        return folded

    number = unfold(number, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) % (1 << 64)
    number = unfold(number, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) % (1 << 64)
    key = (unfold(number, 30) - 0x9E3779B97F4A7C15) % (1 << 64)
    return key - (1 << 64) if key >> 63 else key


@pytest.mark.parametrize(
    ("number", "noise"),
    [
        (0, -math.log(54 * math.log(2))),
        (1 << 63, -math.log(math.log(2))),
        ((1 << 64) - 1, 53 * math.log(2)),
        ((1 << 64) - (1 << 52) - 1, 12 * math.log(2)),
    ],
    ids=["least", "middle", "largest", "largest without 12 leading ones"],
)
def test_the_noise_has_the_bounds_that_contenders_are_found_by(number, noise):
    """The largest bits must not round to a uniform number of 1, whose noise is infinite."""
    assert gumbel([key_of(number)], 1, CPU).item() == pytest.approx(noise, rel=1e-4)


@pytest.fixture(params=["with code for the processor", "without"])
def code(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setattr("decoders.noise.find", lambda: None)


@pytest.mark.parametrize("vocab_size", [1, 7, 8, 9, 1003, 49_152])
@pytest.mark.parametrize("scale", [0.0, 0.3, 4.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_choice_is_the_argmax_of_scores_and_noise(code, vocab_size, scale, dtype):
    torch.manual_seed(0)
    scores = (torch.randn(5, vocab_size) * scale).to(dtype)
    scores[1, : vocab_size // 2] = -math.inf
    scores[2, vocab_size // 2 :] = -math.inf
    noise = gumbel(position_keys(9, 3, 5), vocab_size, CPU)

    wanted = [
        token if value > -math.inf else NO_TOKEN
        for token, value in zip(
            (scores + noise).argmax(-1).tolist(), scores.amax(-1).tolist(), strict=True
        )
    ]
    assert GumbelNoise(9).choose(scores, 3) == wanted


def test_rows_that_lie_apart_in_memory_are_chosen_from_like_others(code):
    torch.manual_seed(0)
    scores = torch.randn(100, 6).T

    assert GumbelNoise(2).choose(scores, 0) == GumbelNoise(2).choose(scores.contiguous(), 0)


@pytest.mark.parametrize("at", [0, 500, 1002])
def test_nothing_is_chosen_where_a_score_is_no_number(code, at):
    scores = torch.zeros(3, 1003)
    scores[1, at] = math.nan

    chosen = GumbelNoise(2).choose(scores, 0)

    assert chosen[1] == NO_TOKEN
    assert NO_TOKEN not in (chosen[0], chosen[2])


@pytest.mark.parametrize("lucky", [0, 3, 8, 1002])
def test_a_token_that_only_noise_can_let_win_does(code, lucky):
    """Its noise is the largest there is, its score 25 less than the others'."""
    weyl = 0x9E3779B97F4A7C15
    key = (key_of((1 << 64) - 1) - lucky * weyl) % (1 << 64)
    scores = torch.zeros(1, 1003)
    scores[0, lucky] = -25.0

    assert _noisy_best(scores, [key - (1 << 64) if key >> 63 else key]).tolist() == [lucky]


def test_gumbel_max_follows_the_law():
    scores = torch.tensor(logs(0.5, 0.3, 0.2)).expand(40_000, 3)
    counts = torch.bincount(torch.tensor(GumbelNoise(11).choose(scores, 0)), minlength=3)

    assert (counts / 40_000).tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.0125)


def test_impossible_tokens_are_never_chosen():
    scores = torch.tensor([0.0, -math.inf]).expand(5000, 2)

    assert set(GumbelNoise(3).choose(scores, 0)) == {0}


def test_draws_for_different_purposes_and_positions_are_different_draws():
    scores = torch.zeros(1, 1 << 20)
    purposes = [*Purpose, Purpose.CANDIDATE + 1, Purpose.CANDIDATE + 2]
    chosen = {
        (purpose, position, seed): GumbelNoise(seed).choose(scores, position, purpose)[0]
        for purpose in purposes
        for position in range(4)
        for seed in (0, 1, 2)
    }

    assert len(set(chosen.values())) == len(chosen)
    assert GumbelNoise(5).choose(scores, 3) == GumbelNoise(5).choose(scores, 3, Purpose.CHOICE)


def test_other_purposes_are_independent_of_the_choice():
    """Fixed seed; 5 standard errors of the correlation of 40,000 pairs."""
    scores = torch.zeros(40_000, 2)
    choice = torch.tensor(GumbelNoise(8).choose(scores, 0)).double()
    accepted = torch.tensor([GumbelNoise(8).accept(0.5, t) for t in range(40_000)]).double()
    for purpose in (Purpose.RESIDUAL, Purpose.BONUS, Purpose.CANDIDATE):
        other = torch.tensor(GumbelNoise(8).choose(scores, 0, purpose)).double()
        for left, right in ((choice, other), (accepted, other)):
            assert abs(torch.corrcoef(torch.stack([left, right]))[0, 1]) < 5 / 200
    assert abs(torch.corrcoef(torch.stack([choice, accepted]))[0, 1]) < 5 / 200


def test_accepting_has_its_probability():
    noise = GumbelNoise(4)
    for probability in (0.1, 0.5, 0.93):
        count = sum(noise.accept(probability, t) for t in range(20_000))
        assert count / 20_000 == pytest.approx(probability, abs=5 * 0.5 / math.sqrt(20_000))
    assert all(noise.accept(1.0, t) and not noise.accept(0.0, t) for t in range(100))


def test_the_noise_knows_the_law_it_draws_with():
    scores = torch.tensor([logs(0.5, 0.3, 0.2), logs(0.2, 0.2, 0.6)])

    assert GumbelNoise(1).law(scores).tolist()[1] == pytest.approx([0.2, 0.2, 0.6])
    assert GumbelNoise(1).law(scores).dtype == torch.float64
    assert Greedy().law(scores).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert Greedy().law(torch.zeros(4)).tolist() == [1, 0, 0, 0]
    assert Greedy().accept(1.0, 0)
    assert not Greedy().accept(0.999, 0)


def test_greedy_takes_the_smallest_id_of_equals():
    assert Greedy().choose(torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]), 0) == [1, 0]
    assert isinstance(noise_for(SamplingParams(temperature=0), 1), Greedy)
    assert isinstance(noise_for(SamplingParams(temperature=0.1), 1), GumbelNoise)
