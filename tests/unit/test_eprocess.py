"""The e-process over requests: both forms, joined members, and how often it is wrong."""

import math
from itertools import accumulate

import pytest

from gateway.evidence.eprocess import EProcess
from gateway.tally import Tally


def after(*requests):
    return list(
        accumulate(requests, lambda e, r: e.update(Tally(log_factors=r)), initial=EProcess())
    )


def test_nothing_seen_is_no_evidence():
    assert EProcess().log_e == EProcess().log_change == 0.0
    assert EProcess().update(Tally()) == EProcess()


def test_it_is_the_average_of_the_members_products():
    last = after({"a": math.log(3), "b": math.log(0.5)}, {"a": math.log(2), "b": math.log(0.5)})[-1]

    assert last.log_e == pytest.approx(math.log((6 + 0.25) / 2))


def test_the_restarted_form_forgets_what_was_lost():
    last = after(*[{"a": math.log(0.5)}] * 100, {"a": math.log(4)})[-1]

    assert last.log_e == pytest.approx(math.log(4) + 100 * math.log(0.5))
    assert last.log_change == pytest.approx(math.log(4))


def test_a_member_that_is_not_named_keeps_its_capital():
    last = after({"a": 1.0, "b": 2.0}, {"b": 1.0})[-1]

    assert last.log_products == {"a": 1.0, "b": 3.0}


@pytest.mark.parametrize("before", [-7.0, 0.0, 7.0])
def test_a_member_that_joins_cannot_raise_the_average(before):
    first, second = after({"a": before}, {"b": 0.0})[1:]

    assert second.log_e <= first.log_e + 1e-12
    assert second.log_change <= max(0.0, first.log_change) + 1e-12


def test_huge_and_lost_capitals_are_numbers_all_the_same():
    last = after(*[{"a": 1e4, "b": -math.inf}] * 100)[-1]

    assert last.log_e == pytest.approx(1e6 - math.log(2))
    assert after({"a": -math.inf})[-1].log_e == -math.inf
    # What is lost is lost for the plain form; the other starts anew.
    assert after({"a": -math.inf}, {"a": 1.0})[-1].log_change == 1.0


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_factor_is_refused(wrong):
    with pytest.raises(ValueError, match="'a'"):
        EProcess().update(Tally(log_factors={"a": wrong}))


def test_the_expectation_never_rises():
    """Two members with factors of mean 1, over every course of four requests."""
    outcomes = [(0.5, 1.5, 0.4), (0.5, 0.5, 1.6)]
    mean = {}

    def walk(state, weight, depth):
        mean[depth] = mean.get(depth, 0.0) + weight * math.exp(state.log_e)
        if depth < 4:
            for chance, first, second in outcomes:
                factors = {"a": math.log(first), "b": math.log(second)}
                walk(state.update(Tally(log_factors=factors)), weight * chance, depth + 1)

    walk(EProcess(), 1.0, 0)

    assert list(mean.values()) == pytest.approx([1.0] * 5, abs=1e-12)
