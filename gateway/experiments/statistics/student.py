"""Student's t distribution, for whole degrees of freedom: its series ends there, so it is exact."""

from __future__ import annotations

import math

_HALVINGS = 200
_FAR = 1e8


def cdf(t: float, degrees: int) -> float:
    """P(T <= ``t``). Raises ValueError for fewer than 1 degree of freedom.

    With the angle a = atan(t / sqrt(degrees)), P(|T| <= t) is

        sin a · (1 + 1/2 cos² a + (1·3)/(2·4) cos⁴ a + …)               even degrees
        2/π · (a + sin a · (cos a + 2/3 cos³ a + (2·4)/(3·5) cos⁵ a …))  odd degrees

    with the powers up to degrees - 2 (Abramowitz and Stegun, Handbook of Mathematical Functions, 1964,
    26.7.3 and 26.7.4).
    """
    if degrees < 1:
        raise ValueError(f"degrees of freedom must be at least 1, not {degrees}")
    if math.isinf(t):
        return float(t > 0)
    angle = math.atan(abs(t) / math.sqrt(degrees))
    within = _within(angle, degrees)
    return 0.5 + math.copysign(0.5 * within, t)


def quantile(probability: float, degrees: int) -> float:
    """The t with this `cdf`. Raises ValueError for a probability outside (0, 1)."""
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability must be between 0 and 1, not {probability}")
    low, high = -_FAR, _FAR
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _within(angle: float, degrees: int) -> float:
    """P(|T| <= t)."""
    square = math.cos(angle) ** 2
    if degrees % 2 == 0:
        term = total = 1.0
        for k in range(2, degrees - 1, 2):
            term *= (k - 1) / k * square
            total += term
        return math.sin(angle) * total
    total = 0.0
    term = math.cos(angle)
    for k in range(1, degrees - 1, 2):
        total += term
        term *= (k + 1) / (k + 2) * square
    return 2 / math.pi * (angle + math.sin(angle) * total)
