"""Confidence sequences: intervals that hold at every number of tokens at once, however often one looks.

Knows nothing of cells or storage.
"""

from __future__ import annotations

import math

from gateway.tally import Moments

_TIGHTEST_AT = 250.0
"""The sum of variances at which the interval is about as narrow as one of its kind can be: that of
some hundreds to some thousands of tokens."""


def interval(moments: Moments, count: int, alpha: float) -> tuple[float, float]:
    """Bounds for the mean of observed - expected per token, after ``count`` tokens.

    Where the tokens follow the target's law the mean is 0, and bounds that leave 0 out at any time
    have a probability of about ``alpha``: asymptotic, not exact, because sums of many tokens are taken
    to be normal. With S the sum of differences and V that of their conditional variances, which are
    known exactly, it is the normal mixture

        (S ± sqrt((V + r) · log((V + r) / (r · alpha²)))) / count

    (Robbins, Annals of Mathematical Statistics 1970; Howard, Ramdas, McAuliffe and Sekhon, Annals of
    Statistics 2021; for sums that are only about normal: Waudby-Smith, Arbour, Sinha, Kennedy and
    Ramdas, Annals of Statistics 2024). Without tokens the bounds are infinite. Raises ValueError for
    an alpha outside (0, 1).
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
    if count <= 0:
        return -math.inf, math.inf
    spread = 2.0 * math.log(1.0 / alpha)
    offset = _TIGHTEST_AT / (spread + math.log(spread + 1.0))
    total = max(0.0, moments.variance) + offset
    radius = math.sqrt(total * (math.log(total / offset) + spread))
    difference = moments.observed - moments.expected
    return (difference - radius) / count, (difference + radius) / count
