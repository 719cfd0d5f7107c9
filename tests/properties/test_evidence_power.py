"""The e-process keeps its promise on sound decoders, and sees the known faults."""

import pytest

from benchmarks.evidence_power import EXACT, FAULTS, follow

SEEN = {decoder.name: decoder for decoder in FAULTS}


@pytest.mark.parametrize("decoder", EXACT, ids=lambda decoder: decoder.name)
def test_a_sound_decoder_hardly_ever_raises_the_alarm(decoder):
    course = follow(decoder, runs=60, tokens=50, alpha=0.05, seed=11)

    # 3 in 60 are allowed; more than 9 have a probability below 1 in 1,000 even so.
    assert course.alarms <= 9


@pytest.mark.parametrize(
    "name", ["3 in 10 drafts unverified", "sharpened target", "truncated tail"]
)
def test_a_fault_raises_it(name):
    course = follow(SEEN[name], runs=4, tokens=2000, alpha=0.05, seed=5)

    assert course.alarms == course.runs
