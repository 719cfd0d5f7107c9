"""Tells disturbed measurements: a short fixed piece of work is timed between all others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

TOLERANCE = 1.5


def is_disturbed(readings: Sequence[float], before: float, after: float) -> bool:
    """Whether either reading is 1.5 times as long, or as short, as the median of all ``readings``."""
    usual = statistics.median(readings)
    return not all(usual / TOLERANCE <= one <= usual * TOLERANCE for one in (before, after))


class Guard:
    """Times a reference between blocks; a block stands between two of its readings."""

    def __init__(self, reference: Callable[[], float]) -> None:
        """``reference`` does the fixed piece of work and returns its seconds."""
        self._reference = reference
        self._readings: list[float] = []

    def read(self) -> float:
        """Time the reference once more."""
        self._readings.append(self._reference())
        return self._readings[-1]

    def disturbed(self, before: float, after: float) -> bool:
        """Whether either reading is 1.5 times as long, or as short, as the median of all so far."""
        return is_disturbed(self._readings, before, after)

    @property
    def spread(self) -> dict[str, float]:
        """Seconds of the reference: median, least and most."""
        return {
            "median": statistics.median(self._readings),
            "least": min(self._readings),
            "most": max(self._readings),
        }
