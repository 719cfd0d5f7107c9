"""Log-probabilities of tokens that came by way of a draft.

Servers have reported 0.0 for every accepted token, none at all, those of another row, and those that
penalties had already been written into. For the `coupled` verifier in every mode see
`tests/unit/decoders/test_engine.py`.
"""

import math

import pytest

from tests.decoding import TOKENIZER, VERIFIERS, choosing, make_engine, make_request, modes

SHAPING = {
    "plain": {},
    "shaped": {
        "temperature": 0.6,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.3,
        "logit_bias": {0: 2.0},
        "top_p": 0.95,
    },
}


@pytest.mark.parametrize("shaping", SHAPING)
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("mode", modes())
def test_every_token_has_the_raw_logprob_that_teacher_forcing_gives_it(mode, verifier, shaping):
    pieces = []
    row = make_engine().generate(
        make_request(
            mode=modes()[mode],
            verifier=VERIFIERS[verifier](),
            listener=pieces.append,
            logprobs=3,
            **SHAPING[shaping],
        )
    )
    entries = [entry for piece in pieces for entry in piece.logprobs]

    assert [entry.token_id for entry in entries] == row.output_ids
    prefix = TOKENIZER.encode("ab")
    for entry in entries:
        law = choosing(prefix)
        assert entry.logprob == pytest.approx(math.log(law[entry.token_id]))
        assert [math.exp(value) for _, value in entry.top] == pytest.approx(
            sorted(law, reverse=True)[:3]
        )
        prefix.append(entry.token_id)


@pytest.mark.parametrize("mode", modes())
def test_without_being_asked_there_are_none_in_any_mode(mode):
    pieces = []
    make_engine().generate(make_request(mode=modes()[mode], listener=pieces.append))

    assert not any(piece.logprobs for piece in pieces)
