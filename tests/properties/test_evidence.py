"""What the meter says of sound code has the expectations it claims, over every branch of every choice."""

import math
from dataclasses import replace

import pytest
import torch

from decoders.draft import Draft, OneHot
from decoders.engine import Engine
from decoders.evidence import ALTERNATIVES, MOMENTS, Evidence
from decoders.meter import LawMeter
from decoders.modes import Speculative, Standard
from decoders.noise import Greedy
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.sampling import TokenCounts, process
from decoders.testing import (
    Branches,
    CharacterTokenizer,
    EnumeratedNoise,
    SampledDraftSource,
    ScriptedDraftSource,
    TableModel,
)
from decoders.verifiers.base import DraftedRow
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier
from decoders.verifiers.typical import TypicalVerifier
from tests.laws import (
    DRAFT_LAWS,
    EOS,
    PROCESSORS,
    PROMPT,
    TEXT,
    TOLERANCE,
    VOCAB,
    oracle,
    sampled_draft,
    target,
)
from tests.properties.test_negative_controls import KeyedNoise

METER = LawMeter(hedge_ids=[1])
EXACT = [CoupledVerifier, RejectionVerifier]
SAMPLING = ["plain", "hot", "top_k", "ban", "all"]


def of_point(noise):
    return Draft(tuple(oracle(PROMPT, 2)), from_context=True)


def of_law(name):
    return lambda noise: sampled_draft(noise, DRAFT_LAWS[name], 2)


def looked_at(noise):
    return sampled_draft(noise, DRAFT_LAWS["near"], 2).select(2).one_hot()


DRAFTS = {
    "none": lambda noise: Draft(),
    "point": of_point,
    "selected": looked_at,
    **{name: of_law(name) for name in DRAFT_LAWS},
}


def measured(verifier, params, draft, noise):
    """Evidence of each token that one judged draft after `PROMPT` gives, in double precision."""
    params = SamplingParams(**params)
    prefixes = [(*PROMPT, *draft.token_ids[:i]) for i in range(len(draft) + 1)]
    logits = torch.tensor([target(prefix) for prefix in prefixes], dtype=torch.float64).log()
    counts = TokenCounts(PROMPT, (), VOCAB, torch.device("cpu"))
    scores = process(logits, params, counts, draft.token_ids)
    rows = [DraftedRow(draft, Greedy() if params.greedy else noise, 0)]
    verdicts = verifier.verify(scores, rows)
    (columns,) = METER.measure(verifier, scores, rows, verdicts)
    return [Evidence.of(column.tolist()) for column in columns]


def every_branch(run):
    """(weight, result) of every branch."""
    branches, more = Branches(), True
    while more:
        result = run(branches)
        yield branches.weight, result
        more = branches.rewind()


def expectations(runs):
    """Of exp(sum of log factors), and of each difference and its square less its variance."""
    factors = dict.fromkeys(ALTERNATIVES, 0.0)
    means = dict.fromkeys(MOMENTS, 0.0)
    excess = dict.fromkeys(MOMENTS, 0.0)
    for weight, parts in runs:
        for name in factors:
            factors[name] += weight * math.exp(sum(e.log_factors[name] for e in parts))
        for name in means:
            sums = [e.moments[name] for e in parts]
            difference = sum(s.observed - s.expected for s in sums)
            means[name] += weight * difference
            excess[name] += weight * (difference**2 - sum(s.variance for s in sums))
    return factors, means, excess


def assert_fair(runs, tolerance=TOLERANCE):
    factors, means, excess = expectations(runs)
    assert all(value <= 1.0 + tolerance for value in factors.values()), factors
    assert means == pytest.approx(dict.fromkeys(MOMENTS, 0.0), abs=100 * tolerance)
    assert excess == pytest.approx(dict.fromkeys(MOMENTS, 0.0), abs=100 * tolerance)
    return factors


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("verifier", EXACT)
@pytest.mark.parametrize("params", SAMPLING)
def test_a_step_of_an_exact_verifier_is_fair(params, verifier, draft):
    def run(branches):
        noise = EnumeratedNoise(branches)
        return measured(verifier(), PROCESSORS[params], DRAFTS[draft](noise), noise)

    runs = list(every_branch(run))
    if verifier is CoupledVerifier:
        # Enumerated draws are all independent: how often a drawn draft stands is another matter here.
        assert all(e.moments["accepted"].observed == 0 for _, parts in runs for e in parts) or (
            draft == "point"
        )
    factors = assert_fair(runs)
    assert all(factors[name] == pytest.approx(1, abs=1e-9) for name in ALTERNATIVES[3:])


def keyed(draft, verifier):
    """One token of (1/3, 1/3, 1/3), where a draft from (1/6, 1/6, 4/6) is drawn with the same noise."""
    scores = torch.full((2, VOCAB), 1 / 3, dtype=torch.float64).log()

    def run(branches):
        noise = KeyedNoise(branches, {})
        drawn = sampled_draft(noise, lambda prefix: (1 / 6, 1 / 6, 4 / 6), 1)
        rows = [DraftedRow(draft(drawn), noise, 0)]
        (columns,) = METER.measure(verifier, scores, rows, verifier.verify(scores, rows))
        return [Evidence.of(columns[0].tolist())]

    return list(every_branch(run))


@pytest.mark.parametrize(
    "draft", [lambda d: d, lambda d: d.select(1).one_hot()], ids=["law", "selected"]
)
@pytest.mark.parametrize("verifier", [CoupledVerifier(), RejectionVerifier()])
def test_a_draft_that_shares_its_noise_with_the_choice_is_no_evidence_of_a_leak(draft, verifier):
    assert_fair(keyed(draft, verifier))


def test_a_drawn_draft_that_claims_to_follow_from_the_context_would_be():
    runs = keyed(lambda d: replace(d, law=OneHot(), from_context=True), CoupledVerifier())
    factors, means, _ = expectations(runs)

    assert factors["leak_0.3"] > 1.05
    assert means["accepted"] > 0.1


def answers(verifier, mode, params, stop=()):
    """The evidence of whole answers of the engine, over every branch."""

    def run(branches):
        engine = Engine(
            TableModel(target, VOCAB, max_length=12),
            CharacterTokenizer(TEXT, eos_ids=[EOS]),
            meter=METER,
        )
        row = SamplingParams(**params, stop=stop, max_tokens=3, seed=1)
        request = Request(PROMPT, row, mode(), verifier(), noise=EnumeratedNoise(branches))
        sequence = engine.generate(request)
        assert sequence.stats.evidence.num_tokens == sequence.num_output_tokens
        assert sequence.stats.evidence.num_impossible == 0
        return [sequence.stats.evidence]

    return list(every_branch(run))


MODES = {
    "standard": Standard,
    "point": lambda: Speculative(ScriptedDraftSource(oracle), 2),
    "law": lambda: Speculative(SampledDraftSource(DRAFT_LAWS["near"]), 2),
}


@pytest.mark.parametrize(("params", "stop"), [("plain", ("ab",)), ("all", ())])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verifier", EXACT)
def test_an_answer_of_the_engine_is_fair_wherever_it_ends(params, verifier, mode, stop):
    factors = assert_fair(answers(verifier, MODES[mode], PROCESSORS[params], stop), 2e-6)
    # What is given away for rounding is next to nothing.
    assert all(factors[name] > 1 - 1e-3 for name in ALTERNATIVES[3:])


def test_a_lossy_verifier_is_not_fair():
    runs = answers(lambda: TypicalVerifier(1.0, epsilon=0.05), MODES["law"], PROCESSORS["plain"])
    factors, means, _ = expectations(runs)

    assert max(factors.values()) > 1.01
    assert max(map(abs, means.values())) > 0.01
