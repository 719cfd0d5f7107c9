"""What the engine has measured of some rows' tokens, as the gateway's `Tally`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add

from decoders.evidence import Evidence
from gateway.tally import Moments, Tally


def tally_of(evidence: Iterable[Evidence | None], *, fresh: bool) -> Tally | None:
    """The sum over rows; None where none of them was measured.

    ``fresh`` says that nobody else chose the noise. A caller's own seed may have been used before, or
    be chosen for its answer, so that such a request is no evidence for or against anything: of it only
    the impossible tokens are counted, which no noise can bring about.
    """
    tallies = [_tally(one) for one in evidence if one is not None]
    if not tallies:
        return None
    total = reduce(add, tallies)
    if fresh:
        return total
    return Tally(num_tokens=total.num_tokens, num_impossible=total.num_impossible)


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
