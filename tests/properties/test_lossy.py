"""Lossy verifiers fail the proof of exactness, by exactly the amount that they say, and within budget."""

import pytest

from decoders.draft import Draft
from decoders.gates import ContentTokens, FunctionWords, StandardFirst
from decoders.modes import Hybrid, Speculative
from decoders.params import SamplingParams
from decoders.testing import SampledDraftSource, ScriptedDraftSource, enumerate_law
from decoders.verifiers.conservative import ConservativeVerifier
from decoders.verifiers.rejection import RejectionVerifier
from decoders.verifiers.typical import TypicalVerifier
from tests.laws import (
    DRAFT_LAWS,
    PROCESSORS,
    VOCAB,
    answer,
    assert_equal_laws,
    block,
    judged,
    oracle,
    product,
    reference,
    sampled_draft,
    total_variation,
)

LOSSY = {
    "typical": TypicalVerifier,
    "typical, strict": lambda budget: TypicalVerifier(budget, epsilon=0.4, delta=0.8),
    "conservative": lambda budget: ConservativeVerifier(budget, candidates=3, warm_up=0),
    "conservative, picky": lambda budget: ConservativeVerifier(
        budget, candidates=3, threshold=0.45, warm_up=0
    ),
    "conservative, single": lambda budget: ConservativeVerifier(budget, candidates=1, warm_up=0),
}
DRAFTS = {
    name: lambda noise, law=law: sampled_draft(noise, law, 1) for name, law in DRAFT_LAWS.items()
} | {f"always {token}": lambda noise, token=token: Draft((token,)) for token in range(VOCAB)}
WORDS = FunctionWords([" the", " cat", "."])
MODES = {
    "oracle": lambda k: Speculative(ScriptedDraftSource(oracle), k),
    "sampled": lambda k: Speculative(SampledDraftSource(DRAFT_LAWS["near"]), k),
    "standard-first": lambda k: Hybrid(ScriptedDraftSource(oracle), [StandardFirst(2)], k),
    "content-tokens": lambda k: Hybrid(ScriptedDraftSource(oracle), [ContentTokens(WORDS)], k),
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("verifier", LOSSY)
def test_one_step_is_off_by_exactly_what_it_says(verifier, processor, draft):
    """With one law for the draft, the first token's law is the emission law of the formula.

    The reports agree on every branch where the draft has that law; a draft that was cut to fit the
    vocabulary is another case, and they are weighed.
    """
    params = PROCESSORS[processor]

    def run(noise):
        verdict = judged(LOSSY[verifier](1.0), params, DRAFTS[draft](noise), noise)
        return verdict.token_ids[0], verdict.discrepancies[0], len(verdict.discrepancies)

    ran = enumerate_law(run)
    law = {}
    for (token, _, _), weight in ran.items():
        law[(token,)] = law.get((token,), 0.0) + weight
    stated = sum(weight * discrepancy for (_, discrepancy, _), weight in ran.items())

    assert total_variation(law, product(params, 1)) == pytest.approx(stated, abs=1e-12)


def test_the_lossy_verifiers_do_fail_the_proof_of_exactness():
    """By the figures that the formulas give by hand, for the target's law (.25, .5, .25)."""
    given = {
        "typical": 1 - 0.5,  # the draft token b always stands
        "conservative": 1 - 0.5,
    }
    for name, expected in given.items():
        law = block(lambda name=name: LOSSY[name](1.0), {}, lambda noise: Draft((1,)), 1)
        assert total_variation(law, product({}, 1)) == pytest.approx(expected, abs=1e-12)
        with pytest.raises(AssertionError):
            assert_equal_laws(law, product({}, 1))


def test_the_best_of_five_candidates_all_but_drops_a_fifth_of_the_law(monkeypatch):
    law = (0.5, 0.3, 0.2)
    monkeypatch.setattr("tests.laws.target", lambda prefix: law)

    emitted = block(
        lambda: ConservativeVerifier(1.0, warm_up=0),
        {},
        lambda noise: sampled_draft(noise, lambda prefix: law, 1),
        1,
    )

    assert emitted[(2,)] == pytest.approx(0.2**5, abs=1e-12)
    assert emitted[(0,)] == pytest.approx(1 - 0.5**5, abs=1e-12)


@pytest.mark.parametrize("budget", [0.05, 0.3, 1.0])
@pytest.mark.parametrize(
    ("mode", "k"), [(mode, k) for mode in MODES for k in (1, 2, 3, 4) if mode != "sampled" or k < 2]
)
@pytest.mark.parametrize("verifier", ["typical", "conservative"])
def test_a_whole_answer_is_off_by_no_more_than_the_summed_discrepancy(verifier, mode, budget, k):
    max_tokens = 3 if mode == "sampled" else max(4, k + 2)
    params = PROCESSORS["all" if k > 2 else "plain"]

    def run(noise):
        made = LOSSY[verifier](budget)
        sequence = answer(params, MODES[mode](k), noise, verifier=made, max_tokens=max_tokens)
        assert sequence.stats.distortion <= budget + 1e-12
        assert sequence.stats.distortion <= made.distortion + 1e-12
        return tuple(sequence.output_ids), sequence.stats.distortion

    ran = enumerate_law(run)
    law = {}
    for (output, _), weight in ran.items():
        law[output] = law.get(output, 0.0) + weight
    spent = sum(weight * distortion for (_, distortion), weight in ran.items())
    off = total_variation(law, reference(SamplingParams(**params), max_tokens=max_tokens))

    assert off <= spent + 1e-12
    assert spent <= budget + 1e-12
    assert (spent > 0) == (off > 1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verifier", LOSSY)
def test_a_budget_below_every_cost_leaves_the_exact_law(verifier, mode):
    max_tokens = 3 if mode == "sampled" else 4

    def run(noise):
        made = LOSSY[verifier](1e-6)
        return tuple(
            answer({}, MODES[mode](1), noise, verifier=made, max_tokens=max_tokens).output_ids
        )

    assert_equal_laws(enumerate_law(run), reference(SamplingParams(), max_tokens=max_tokens))


def test_once_exhausted_it_stays_exact_even_where_a_token_would_be_affordable():
    """Draft b costs 1/2, which is too much; at temperature 1/2 it would cost 1/3."""
    verifier = TypicalVerifier(0.45)
    sharp = PROCESSORS["temperature"]

    first = judged(verifier, {}, Draft((1,)), _Always())
    second = judged(verifier, sharp, Draft((1,)), _Always(), position=9)
    fresh = judged(TypicalVerifier(0.45), sharp, Draft((1,)), _Always(), position=9)

    assert verifier.exhausted
    assert (first.discrepancies[0], second.discrepancies[0]) == (0.0, 0.0)
    assert fresh.discrepancies[0] == pytest.approx(1 / 3)
    assert verifier.distortion == 0.0


def test_the_warm_up_is_exact_and_what_follows_is_not():
    warm = block(
        lambda: ConservativeVerifier(1.0, candidates=2, warm_up=1),
        {},
        lambda noise: sampled_draft(noise, DRAFT_LAWS["near"], 2),
        2,
    )
    expected = product({}, 2)

    def first(law):
        marginal = {}
        for output, weight in law.items():
            marginal[output[:1]] = marginal.get(output[:1], 0.0) + weight
        return marginal

    assert_equal_laws(first(warm), first(expected))
    assert total_variation(warm, expected) > 0.01


def test_at_temperature_0_nothing_is_lost():
    """The target's law is a point: a token that is not it is never likely enough."""
    for verifier in LOSSY.values():
        for draft in DRAFTS.values():
            law = block(lambda v=verifier: v(1.0), PROCESSORS["greedy"], draft, 2)
            assert_equal_laws(law, product(PROCESSORS["greedy"], 2))


def test_a_verifier_with_an_account_serves_one_row_only():
    verifier = TypicalVerifier(0.5)
    judged(verifier, {}, Draft((0, 1)), _Always(), position=4)

    with pytest.raises(ValueError, match="one row's account"):
        judged(verifier, {}, Draft((0,)), _Always(), position=0)


@pytest.mark.parametrize("budget", [0.0, -0.1, 1.01, float("nan")])
def test_a_budget_outside_its_range_is_refused(budget):
    with pytest.raises(ValueError, match="max_distortion"):
        TypicalVerifier(budget)


@pytest.mark.parametrize(
    ("verifier", "knob"),
    [
        (TypicalVerifier, {"epsilon": 0.0}),
        (TypicalVerifier, {"delta": 1.0}),
        (ConservativeVerifier, {"candidates": 0}),
        (ConservativeVerifier, {"threshold": 0.0}),
        (ConservativeVerifier, {"warm_up": -1}),
    ],
    ids=str,
)
def test_a_knob_outside_its_range_is_refused(verifier, knob):
    with pytest.raises(ValueError, match=next(iter(knob))):
        verifier(0.5, **knob)


def test_lossy_verifiers_say_so():
    assert not TypicalVerifier(0.5).exact
    assert not ConservativeVerifier(0.5).exact
    assert RejectionVerifier().exact


class _Always:
    """Takes the first possible token, and accepts."""

    def choose(self, scores, position, purpose=0):
        return [int((row > -1e300).nonzero()[0]) for row in scores]

    def accept(self, probability, position):
        return True

    def law(self, scores):
        return scores.double().softmax(-1)
