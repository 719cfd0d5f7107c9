"""Sampling parameters are checked where they are made."""

import math

import pytest

from decoders.params import ParameterError, SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 1e-40),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("top_k", -1),
        ("max_tokens", -1),
        ("stop_token_ids", (3, -1)),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-40),
        ("logprobs", -1),
        ("prompt_logprobs", -1),
        ("stop", ("a", "")),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {3: math.inf}),
        ("logit_bias", {-3: 1.0}),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**{name: value})

    assert caught.value.param == name


def test_the_defaults_and_the_bounds_are_accepted():
    params = SamplingParams(
        temperature=0, top_p=1, min_p=1, top_k=0, max_tokens=1, seed=-1, logprobs=0
    )

    assert params.greedy
    assert not params.penalizes


def test_the_bias_cannot_be_changed_from_outside():
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)

    bias[1] = 9.0

    assert params.logit_bias == {1: 2.0}
