"""Quotas: what is admitted, what it costs, and what is left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access import limiter as module
from gateway.access.limiter import Limiter, header_values
from gateway.errors import RateLimited
from gateway.grants import Grant, Quota, grant


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def caller(name: str = "ann", **quota: Any) -> Grant:
    return grant(name, quota=Quota(**quota))


def test_requests_are_refused_beyond_a_minutes_worth_and_come_back_evenly() -> None:
    clock = Clock()
    limiter = Limiter(clock=clock)
    ann = caller(requests_per_minute=6)
    for _ in range(6):
        limiter.admit(ann)()

    with pytest.raises(RateLimited, match="6 requests per minute") as caught:
        limiter.admit(ann)
    assert caught.value.retry_after == 10
    clock.now += 10
    limiter.admit(ann)
    with pytest.raises(RateLimited):
        limiter.admit(ann)


def test_tokens_are_counted_at_the_end_and_an_overdraft_is_paid_back() -> None:
    clock = Clock()
    limiter = Limiter(clock=clock)
    ann = caller(tokens_per_minute=60)
    limiter.admit(ann)()
    limiter.spend("ann", 90)

    with pytest.raises(RateLimited, match="60 tokens per minute") as caught:
        limiter.admit(ann)
    assert caught.value.retry_after == 31
    clock.now += 31
    limiter.admit(ann)


def test_so_many_at_a_time_and_an_end_counts_once() -> None:
    limiter = Limiter()
    ann = caller(concurrent=2)
    ends = [limiter.admit(ann) for _ in range(2)]
    with pytest.raises(RateLimited, match="in progress"):
        limiter.admit(ann)
    ends[0]()
    ends[0]()
    limiter.admit(ann)
    with pytest.raises(RateLimited):
        limiter.admit(ann)


def test_callers_do_not_share_and_keys_of_one_caller_do() -> None:
    limiter = Limiter(Quota(requests_per_minute=1))
    limiter.admit(caller("ann"))
    limiter.admit(caller("bob"))
    with pytest.raises(RateLimited):
        limiter.admit(caller("ann"))


def test_a_key_s_own_quota_wins_over_the_default_where_it_says_something() -> None:
    limiter = Limiter(Quota(requests_per_minute=1, concurrent=1))
    limiter.admit(caller("ann", requests_per_minute=5))
    with pytest.raises(RateLimited, match="in progress"):
        limiter.admit(caller("ann", requests_per_minute=5))


def test_a_quota_that_is_changed_keeps_what_was_used() -> None:
    limiter = Limiter(clock=Clock())
    for _ in range(5):
        limiter.admit(caller(requests_per_minute=5))()
    with pytest.raises(RateLimited):
        limiter.admit(caller(requests_per_minute=5))

    for _ in range(3):
        limiter.admit(caller(requests_per_minute=8))()
    with pytest.raises(RateLimited):
        limiter.admit(caller(requests_per_minute=8))
    limiter.admit(caller())


def test_what_is_refused_costs_nothing() -> None:
    clock = Clock()
    limiter = Limiter(clock=clock)
    ann = caller(requests_per_minute=60, tokens_per_minute=60)
    limiter.admit(ann)()
    limiter.spend("ann", 120)
    for _ in range(50):
        with pytest.raises(RateLimited):
            limiter.admit(ann)

    assert limiter.allowances("ann")["requests"].remaining == 59


def test_the_headers_say_what_is_left_and_when_all_is_back() -> None:
    limiter = Limiter(clock=Clock())
    ann = caller(requests_per_minute=60, tokens_per_minute=600)
    limiter.admit(ann)
    limiter.spend("ann", 100)

    assert header_values(limiter.allowances("ann")) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1000ms",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "500",
        "x-ratelimit-reset-tokens": "10000ms",
    }
    assert header_values(limiter.allowances("bob")) == {}


def test_callers_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CALLERS", 10)
    limiter = Limiter(Quota(concurrent=1))
    limiter.admit(caller("busy"))
    for number in range(100):
        limiter.admit(caller(f"caller-{number}"))()

    assert len(limiter._accounts) <= 10
    with pytest.raises(RateLimited):
        limiter.admit(caller("busy"))


@given(
    limit=st.integers(1, 50),
    steps=st.lists(st.floats(0, 20), min_size=1, max_size=200),
)
def test_over_any_time_no_more_is_admitted_than_the_quota(limit: int, steps: list[float]) -> None:
    clock = Clock()
    limiter = Limiter(clock=clock)
    admitted = 0
    for pause in steps:
        clock.now += pause
        try:
            limiter.admit(caller(requests_per_minute=limit))()
        except RateLimited:
            continue
        admitted += 1

    assert admitted <= limit + limit * sum(steps) / 60 + 1e-6
