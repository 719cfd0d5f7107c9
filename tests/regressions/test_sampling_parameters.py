"""Sampling parameters at draft positions.

Servers have left min-p and logit bias out there, sampled with a bare softmax, penalised only the
first token of a block, and not counted the draft tokens before a position. That each processor's law
holds at each position is proved in `tests/properties/test_exactness.py`, and that a skipped one
would be seen in `test_negative_controls.py`; these are the symptoms as users met them.
"""

import math

import pytest

from decoders.modes import Speculative
from decoders.testing import SampledDraftSource, ScriptedDraftSource
from tests.decoding import ALPHABET, VERIFIERS, choosing, make_engine, make_request, modes

FLAT = SampledDraftSource(lambda prefix: [1 / 9] * 9)


def insisting(token_id, count=4):
    return Speculative(ScriptedDraftSource(lambda tokens, limit: [token_id] * limit), count)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {1: -100.0}},
        {"logit_bias": {1: -math.inf}},
        {"min_p": 0.9, "logit_bias": {0: 5.0}},
        {"top_k": 1, "logit_bias": {3: 9.0}},
    ],
    ids=["bias", "ban", "min_p", "top_k"],
)
def test_a_token_that_the_parameters_rule_out_is_not_emitted_however_often_drafted(
    params, verifier
):
    for seed in range(10):
        row = make_engine().generate(
            make_request(mode=insisting(1), verifier=VERIFIERS[verifier](), seed=seed, **params)
        )
        assert 1 not in row.output_ids
        assert row.stats.num_draft_tokens > 0
        assert row.stats.num_accepted_tokens == 0


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("params", [{"top_k": 1}, {"temperature": 0.0}, {"top_p": 1e-9}])
def test_sampled_drafts_with_a_law_of_one_token_give_the_greedy_text(params, verifier):
    greedy = make_engine().generate(make_request(temperature=0.0)).output_ids

    row = make_engine().generate(
        make_request(mode=Speculative(FLAT, 4), verifier=VERIFIERS[verifier](), **params)
    )

    assert row.output_ids == greedy


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.8},
        {"frequency_penalty": 1.5},
        {"presence_penalty": 2.0},
        {"presence_penalty": -1.0, "frequency_penalty": 0.7, "repetition_penalty": 0.8},
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_give_the_same_text_in_every_mode(params, temperature):
    texts = {
        tuple(
            make_engine()
            .generate(make_request(mode=mode, temperature=temperature, **params))
            .output_ids
        )
        for mode in [*modes().values(), insisting(0), insisting(1)]
    }

    assert len(texts) == 1


def test_a_draft_that_repeats_a_token_is_penalised_within_itself():
    """After a, the target says a with certainty, until a penalty on two of them says b."""

    def law(prefix):
        return [0.6, 0.4] + [0.0] * (len(ALPHABET) - 2)

    params = {"temperature": 0.0, "frequency_penalty": 0.3, "max_tokens": 6}
    standard = make_engine(law).generate(make_request("h", **params))
    drafted = make_engine(law).generate(make_request("h", insisting(0, 5), **params))

    assert standard.output_ids == [0, 0, 1, 0, 1, 0]
    assert drafted.output_ids == standard.output_ids


def test_the_law_of_the_test_target_is_a_law():
    assert all(
        sum(choosing((a, b))) == pytest.approx(1)
        for a in range(len(ALPHABET))
        for b in range(len(ALPHABET))
    )
