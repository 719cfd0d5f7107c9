"""`Trail`: how an e-value came to be what it is, in a bounded number of points."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

MAX_POINTS = 128


class Point(NamedTuple):
    """The e-value after so many measured tokens."""

    num_tokens: int
    log10_e: float | None
    """None: the bet is lost for good."""


class Trail(msgspec.Struct, frozen=True):
    """A point every ``stride`` requests; when they become too many, every other one goes."""

    kept: tuple[Point, ...] = ()
    last: Point | None = None
    requests: int = 0
    stride: int = 1

    @property
    def points(self) -> tuple[Point, ...]:
        """In order, the newest one always among them."""
        if self.last is None or self.requests % self.stride == 0:
            return self.kept
        return (*self.kept, self.last)

    def add(self, num_tokens: int, log_e: float) -> Trail:
        """The trail after one more request."""
        last = Point(num_tokens, log_e / math.log(10) if math.isfinite(log_e) else None)
        requests, stride, kept = self.requests + 1, self.stride, self.kept
        if requests % stride == 0:
            kept = (*kept, last)
        if len(kept) > MAX_POINTS:
            kept, stride = kept[1::2], stride * 2
        return Trail(kept, last, requests, stride)
