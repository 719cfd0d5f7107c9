"""Chooses one of some candidates by timing them.

The first candidate is the safe one: another must be faster by a margin, measured while nothing else
disturbed. Knows nothing of what is chosen, and is there before torch is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from decoders.measurements import MAX_SPREAD, Form, spread

_MARGIN = 0.95
_ROUNDS = 7
_SECONDS = 4.0


@dataclass(frozen=True)
class Choice:
    """One of some candidates, and the times that speak for it."""

    kind: str
    value: str
    seconds: Mapping[str, tuple[float, float]]
    """By candidate: a decode step of one row, and one of all rows."""
    spread: float = field(default=0.0, compare=False)
    """How much the measurement was disturbed: see `decoders.measurements.spread`."""

    def __str__(self) -> str:
        """For a line of a log: ``dtype bfloat16 (float32 29.1 and 58.0 ms, bfloat16 …)``."""
        times = ", ".join(
            f"{name} {1e3 * one:.1f} and {1e3 * many:.1f} ms"
            for name, (one, many) in self.seconds.items()
        )
        return f"{self.kind} {self.value} ({times})" if times else f"{self.kind} {self.value}"


Step = Callable[[int], None]
"""Runs one decode step of so many rows."""


def choose(
    kind: str,
    candidates: Mapping[str, Step],
    max_rows: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """The candidate with the least time, one row and all rows weighing alike; the first if in doubt.

    Rounds are interleaved, so that a slow moment falls on all candidates.
    """
    samples: dict[tuple[str, int], list[float]] = {}
    end = clock() + _SECONDS
    for done in range(_ROUNDS + 1):
        for name, step in candidates.items():
            for rows in (1, max_rows):
                start = clock()
                step(rows)
                # The first round pays for what later ones find ready.
                if done:
                    samples.setdefault((name, rows), []).append(clock() - start)
        if done and clock() > end:
            break
    seconds = {name: (min(samples[name, 1]), min(samples[name, max_rows])) for name in candidates}
    disturbed = spread(samples.values())
    first = next(iter(candidates))
    best = min(seconds, key=lambda name: math.prod(seconds[name]))
    gain = math.sqrt(math.prod(seconds[best]) / math.prod(seconds[first]))
    value = best if disturbed <= MAX_SPREAD and gain < _MARGIN else first
    return Choice(kind, value, seconds, disturbed)


def _written(choice: Choice) -> object:
    seconds = {name: list(times) for name, times in choice.seconds.items()}
    return {"kind": choice.kind, "value": choice.value, "seconds": seconds}


def _read(document: object) -> Choice:
    if not isinstance(document, dict):
        raise TypeError("not a choice")
    seconds = {
        str(name): (float(one), float(many)) for name, (one, many) in document["seconds"].items()
    }
    if document["value"] not in seconds:
        raise ValueError("the choice is none of its candidates")
    return Choice(str(document["kind"]), str(document["value"]), seconds)


CHOICE: Form[Choice] = Form("choice", _written, _read, lambda choice: choice.spread)
"""How a choice is kept."""
