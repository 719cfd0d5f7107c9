"""What a forward pass costs on this machine: seconds by rows and tokens.

Whoever wants a profile hands in the thing to be timed, so this module knows no model.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from statistics import median_low

from decoders.measurements import Form, spread

Timed = Callable[[int, int], None]
"""Runs one forward pass over so many rows with so many tokens in all, and returns when it is done."""

_FIRST_ROUNDS = 3
_MAX_ROUNDS = 7
_MIN_POINTS = 2
_WIDE = 4
"""Tokens of the row whose attention to a long context is timed beside a single one's."""
_CHOSEN = 4
"""Tokens chosen at once when that is timed, as many as a draft might have."""
_Seconds = Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Profile:
    """Seconds of a forward pass by (rows, tokens of all rows together).

    Between measured points it is linear, beyond the last it goes on with the last slope, and more
    tokens never cost less.
    """

    seconds: _Seconds
    sampling_seconds: float = 0.0
    """To choose one token with noise; the most likely token costs next to nothing."""
    context_seconds: float = 0.0
    """What each token in the cache of a row adds to a pass, beyond those of the measured points."""
    drafted_context_seconds: float = 0.0
    """What it adds for each further token that the row brings: less, as keys are read once a row."""
    spread: float = field(default=0.0, compare=False)
    """How much its measurement was disturbed: see `decoders.measurements.spread`."""

    def __post_init__(self) -> None:
        """Refuse what no forward pass can have cost."""
        if not self.seconds:
            raise ValueError("a profile needs at least one point")
        contexts = (self.context_seconds, self.drafted_context_seconds)
        values = [*self.seconds.values(), self.sampling_seconds, *contexts]
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise ValueError("a profile's seconds must be finite and not negative")
        if not all(0 < rows <= tokens for rows, tokens in self.seconds):
            raise ValueError("a pass has at least one row, and no fewer tokens than rows")

    def forward_seconds(self, rows: int, tokens: int) -> float:
        """The time of one pass over ``rows`` rows that bring ``tokens`` tokens in all."""
        at = (rows, tokens)
        if at not in self._looked_up:
            self._looked_up[at] = self._interpolate(rows, tokens)
        return self._looked_up[at]

    def _interpolate(self, rows: int, tokens: int) -> float:
        curves = self._curves
        known = list(curves)
        at = bisect_left(known, rows)
        if at == len(known):
            return curves[known[-1]].at(tokens)
        high = curves[known[at]].at(tokens)
        if at == 0 or known[at] == rows:
            return high
        low = curves[known[at - 1]].at(tokens)
        return low + (high - low) * (rows - known[at - 1]) / (known[at] - known[at - 1])

    @cached_property
    def _curves(self) -> dict[int, _Curve]:
        all_rows = sorted({rows for rows, _ in self.seconds})
        return {
            rows: _Curve({tokens: s for (r, tokens), s in self.seconds.items() if r == rows})
            for rows in all_rows
        }

    @cached_property
    def _looked_up(self) -> dict[tuple[int, int], float]:
        # The same few are asked for at every step.
        return {}


class _Curve:
    """Seconds by tokens for one number of rows."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self._tokens = sorted(points)
        # What disturbs a measurement makes it slower, so of two that contradict each other the
        # one with more tokens and less time is nearer the truth.
        falling = accumulate((points[tokens] for tokens in reversed(self._tokens)), min)
        self._seconds = list(falling)[::-1]

    def at(self, tokens: int) -> float:
        if tokens <= self._tokens[0] or len(self._tokens) == 1:
            return self._seconds[0]
        i = min(bisect_left(self._tokens, tokens), len(self._tokens) - 1)
        x0, x1 = self._tokens[i - 1], self._tokens[i]
        y0, y1 = self._seconds[i - 1], self._seconds[i]
        return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)


def grid(max_rows: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The points to measure, (rows, tokens): those that the rest can be read from, and the rest."""
    first = [(1, width) for width in (1, 4, 16)]
    more = [(1, width) for width in (8, 2, 32)]
    if max_rows > 1:
        first += [(max_rows, max_rows * width) for width in (1, 4)]
        more += [(max_rows, max_rows * width) for width in (2, 8)]
    middle = math.isqrt(max_rows) + 1
    if middle < max_rows:
        more += [(middle, middle * width) for width in (1, 4, 8)]
    return first, more


def measure(
    forward: Timed,
    *,
    max_rows: int,
    max_tokens_per_row: int = 32,
    choose: Callable[[int], None] | None = None,
    attend: Callable[[int], None] | None = None,
    num_attended: int = 0,
    budget_seconds: float = 2.5,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Time ``forward`` over the grid, round after round, and keep each point's (lower) median.

    ``choose`` chooses so many tokens with noise. ``attend`` is a pass over one row that brings so many
    tokens, with ``num_attended`` more in the cache. A slow moment then falls on all points, not on one.
    Stops when the budget is spent, however many points it has by then, but at least at two.
    """
    end = clock() + budget_seconds
    samples: dict[tuple[int, int], list[float]] = {}
    sampling: list[float] = []
    attending: dict[int, list[float]] = {1: [], _WIDE: []}
    warm: set[int] = set()
    first, more = grid(max_rows)
    for done in range(_MAX_ROUNDS):
        for point in first if done < _FIRST_ROUNDS else first + more:
            rows, tokens = point
            if tokens > rows * max_tokens_per_row:
                continue
            if clock() >= end and len(samples) >= _MIN_POINTS:
                break
            if rows not in warm:
                forward(rows, tokens)  # the first pass pays for what later ones find ready
                warm.add(rows)
            samples.setdefault(point, []).append(_seconds(partial(forward, *point), clock))
        if choose is not None and (not sampling or clock() < end):
            sampling.append(_seconds(partial(choose, _CHOSEN), clock) / _CHOSEN)
        for width, taken in attending.items():
            if attend is not None and clock() < end:
                taken.append(_seconds(partial(attend, width), clock))
    return Profile(
        {point: median_low(values) for point, values in samples.items()},
        median_low(sampling) if sampling else 0.0,
        *_context(samples, attending, num_attended),
        spread(samples.values()),
    )


def _context(
    samples: Mapping[tuple[int, int], list[float]],
    attending: Mapping[int, list[float]],
    num_attended: int,
) -> tuple[float, float]:
    """Seconds for each attended token: of a row's first token, and of each further one."""
    # Of small differences between large times, the least times are nearest the truth.
    more = {
        width: (min(taken) - min(samples[1, width])) / num_attended
        for width, taken in attending.items()
        if taken and (1, width) in samples
    }
    first = max(0.0, more.get(1, 0.0))
    return first, max(0.0, more.get(_WIDE, first) - first) / (_WIDE - 1)


def _seconds(run: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def _written(profile: Profile) -> object:
    return {
        "seconds": [[*point, value] for point, value in sorted(profile.seconds.items())],
        "sampling_seconds": profile.sampling_seconds,
        "context_seconds": profile.context_seconds,
        "drafted_context_seconds": profile.drafted_context_seconds,
    }


def _read(document: object) -> Profile:
    if not isinstance(document, dict):
        raise TypeError("not a profile")
    seconds = {(int(rows), int(tokens)): float(s) for rows, tokens, s in document["seconds"]}
    names = ("sampling_seconds", "context_seconds", "drafted_context_seconds")
    return Profile(seconds, *(float(document[name]) for name in names))


PROFILE: Form[Profile] = Form("profile", _written, _read, lambda profile: profile.spread)
"""How a profile is kept."""
