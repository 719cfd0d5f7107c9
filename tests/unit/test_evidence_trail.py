"""The e-value over tokens: bounded, in order, and always with its newest point."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from gateway.evidence.trail import MAX_POINTS, Point, Trail


def after(requests: int) -> Trail:
    trail = Trail()
    for number in range(1, requests + 1):
        trail = trail.add(number * 10, number * math.log(10))
    return trail


def test_few_requests_have_a_point_each() -> None:
    assert Trail().points == ()
    assert [point.num_tokens for point in after(3).points] == [10, 20, 30]
    assert math.isclose(after(3).points[-1].log10_e or 0, 3.0)


def test_many_are_thinned_evenly_and_the_newest_stays() -> None:
    for requests in (MAX_POINTS + 1, 1000, 1001, 12345):
        points = after(requests).points
        tokens = [point.num_tokens for point in points]
        assert MAX_POINTS // 2 <= len(points) <= MAX_POINTS + 1
        assert tokens[-1] == requests * 10
        assert len({b - a for a, b in pairwise(tokens[:-1])}) == 1


def test_a_lost_bet_has_no_number_and_survives_being_stored() -> None:
    trail = after(2).add(30, -math.inf)

    assert trail.points[-1] == Point(30, None)
    assert msgspec.json.decode(msgspec.json.encode(trail), type=Trail) == trail
