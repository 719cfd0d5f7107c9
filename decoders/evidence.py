"""What is measured of emitted tokens against the target's law: one number a column, summed per row.

The columns are sums of differences whose expectation, given all that came before, is zero under the
target's law, and logarithms of factors whose expectation is at most 1. `decoders.meter` fills them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAKS = (0.02, 0.1, 0.3)
"""The shares of tokens that come from the draft's law unverified, of the alternatives `leak_…`."""
SHARPER = {"sharper_0.8": 1.25, "sharper_0.5": 2.0}
"""Alternative -> the power of the target's probabilities that its law is made of: 1 / temperature."""
FLATTER = {"flatter_1.33": 0.75, "flatter_2": 0.5}
TAIL_LOSS = "tail_loss"
ACCEPTANCE = {"accepts_more": 0.5, "accepts_less": -0.5}
"""Alternative -> the stake on each draft token that stands, of those that should by chance."""
ALTERNATIVES = (
    *(f"leak_{share:g}" for share in LEAKS),
    *SHARPER,
    *FLATTER,
    TAIL_LOSS,
    *ACCEPTANCE,
)
"""In the order of their columns."""
MOMENTS = ("accepted", "surprisal", "tail", "draft_blind", "hedging")
"""In the order of their columns, three for each: observed, expected, variance."""
NUM_COLUMNS = 2 + len(ALTERNATIVES) + 3 * len(MOMENTS)


@dataclass(frozen=True)
class Sums:
    """Over tokens: what was seen, what was to be expected of it, and its variance."""

    observed: float
    expected: float
    variance: float


@dataclass(frozen=True)
class Evidence:
    """What was measured of one row's emitted tokens, or of some."""

    num_tokens: int
    num_impossible: int
    """Tokens with probability 0 under the target's law."""
    log_factors: Mapping[str, float]
    """Alternative -> sum of the logarithms of its factors, in nats."""
    moments: Mapping[str, Sums]
    """By the names of `MOMENTS`."""

    @classmethod
    def of(cls, columns: Sequence[float]) -> Evidence | None:
        """From the sums of the columns; None where nothing was measured."""
        if not columns:
            return None
        factors = columns[2 : 2 + len(ALTERNATIVES)]
        moments = columns[2 + len(ALTERNATIVES) :]
        return cls(
            num_tokens=round(columns[0]),
            num_impossible=round(columns[1]),
            log_factors=dict(zip(ALTERNATIVES, factors, strict=True)),
            moments={name: Sums(*moments[3 * i : 3 * i + 3]) for i, name in enumerate(MOMENTS)},
        )
