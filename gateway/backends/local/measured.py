"""What the engine has measured of some rows' tokens, as the gateway's `Tally`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add

from decoders.evidence import Evidence
from gateway.tally import Moments, Tally


def tally_of(evidence: Iterable[Evidence | None]) -> Tally | None:
    """The sum over rows; None where none of them was measured."""
    tallies = [_tally(one) for one in evidence if one is not None]
    return reduce(add, tallies) if tallies else None


def _tally(evidence: Evidence) -> Tally:
    moments = {
        name: Moments(sums.observed, sums.expected, sums.variance)
        for name, sums in evidence.moments.items()
    }
    return Tally(
        num_tokens=evidence.num_tokens,
        num_impossible=evidence.num_impossible,
        log_factors=evidence.log_factors,
        **moments,
    )
