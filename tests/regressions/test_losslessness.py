"""Faults that bent the law of the text while acceptance looked healthy.

A stated draft law that was not the one drawn from, recovery that shared noise with the draft, a
draft drawn in bfloat16 and judged in float32, beams taken for samples, a comparison with one sample
and the emission of another, a first token that nobody verified, a residual that was not one: each is
put in on purpose in `tests/properties/test_negative_controls.py`. What is left is what only shows
with many rows, or in the counts.
"""

import itertools

import pytest
import torch

from decoders.draft import Dense, Draft, LawError
from decoders.modes import Speculative
from decoders.testing import SampledDraftSource
from decoders.verifiers.base import DraftedRow
from decoders.verifiers.rejection import RejectionVerifier
from tests.decoding import VERIFIERS, choosing, drain, make_engine, make_request, modes


def near(prefix):
    law = [0.7 * mass + 0.3 / 9 for mass in choosing(prefix)]
    return [mass / sum(law) for mass in law]


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0, 2.0])
@pytest.mark.parametrize("num_rows", [2, 3, 4])
def test_sampled_drafts_of_many_rows_do_not_mix(num_rows, temperature, verifier):
    """Probabilistic drafts once corrupted text from three rows on, with acceptance as usual."""

    def requests():
        source = SampledDraftSource(near)
        return [
            make_request(
                "ab" + "abcd"[row] * row,
                Speculative(source, row + 1),
                verifier=VERIFIERS[verifier](),
                seed=row,
                temperature=temperature,
            )
            for row in range(num_rows)
        ]

    engine = make_engine()
    together = engine.submit(requests())
    drain(engine)

    for ticket, request in zip(together, requests(), strict=True):
        assert ticket.sequence.output_ids == make_engine().generate(request).output_ids


def test_a_sampled_draft_is_judged_by_its_law_and_not_as_given():
    """Acceptance is Σ min(target, draft), here 1; judged as given it would be Σ target², below .4."""
    row = make_engine().generate(
        make_request(
            mode=Speculative(SampledDraftSource(choosing), 4),
            verifier=RejectionVerifier(),
            max_tokens=100,
        )
    )

    assert row.stats.acceptance_rate == 1.0


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_single_wrong_draft_token_is_replaced_in_its_own_row(verifier):
    """A rejection at the only, and so last, candidate once reached the wrong row, one step late."""
    for others in itertools.product(["standard", "likeliest", "wrong"], repeat=2):
        engine = make_engine()
        wrong = Speculative(modes()["wrong"].source(0)[0], 1)
        requests = [make_request(mode=wrong, verifier=VERIFIERS[verifier](), seed=1)] + [
            make_request("ba", modes()[name], verifier=VERIFIERS[verifier](), seed=2)
            for name in others
        ]
        tickets = engine.submit(requests)
        drain(engine)
        first = tickets[0].sequence

        assert first.output_ids == make_engine().generate(requests[0]).output_ids
        assert first.stats.num_steps == first.num_output_tokens
        assert first.stats.num_accepted_tokens == 0


def test_a_draft_without_its_law_is_refused_rather_than_guessed():
    draft = Draft((0, 1), law=Dense(torch.tensor([[0.5, 0.5], [0.5, 0.5]])))
    with pytest.raises(LawError):
        RejectionVerifier().verify(torch.zeros(3, 2), [DraftedRow(draft.select(1), None, 0)])
