"""`EProcess`: the bet that emitted tokens do not follow the target's law, over many requests.

Each alternative of `Tally.log_factors` bets against the target's law with factors whose expectation,
given all that came before, is at most 1 where that law holds. The average of the alternatives'
capitals then reaches 1/alpha with probability alpha at most, whenever one looks and however often
(Ville's inequality; Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-
valid inference", Statistical Science 2023). Knows nothing of cells, storage or HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from gateway.tally import Tally


class EProcess(msgspec.Struct, frozen=True):
    """The capital of each alternative, in natural logarithms, so that no product overflows."""

    log_products: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Alternative -> the sum of its log factors over all requests."""
    log_restarts: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The same, but begun anew before each request at which it had fallen below 1."""

    def update(self, tally: Tally) -> EProcess:
        """The state after one more request.

        An alternative that the tally does not name keeps its capital. Raises ValueError for a log
        factor that is not a number or is +inf; -inf is a capital lost for good.
        """
        for name, log_factor in tally.log_factors.items():
            if math.isnan(log_factor) or log_factor == math.inf:
                raise ValueError(f"the log factor of {name!r} is {log_factor}, not a number")
        return EProcess(
            _moved(self.log_products, tally.log_factors, floor=-math.inf),
            _moved(self.log_restarts, tally.log_factors, floor=0.0),
        )

    @property
    def log_e(self) -> float:
        """Of the average capital; alarm at log(1/alpha). 0 before the first request.

        False alarms, ever: with probability alpha at most.
        """
        return _log_average(self.log_products)

    @property
    def log_change(self) -> float:
        """Of the average restarted capital, which soon sees a fault that begins late.

        With the alarm at log(1/alpha) there are 1/alpha requests between false alarms on average, at
        least: it is the CUSUM e-detector of Shin, Ramdas and Rinaldo, arXiv 2203.03532.
        """
        return _log_average(self.log_restarts)


def _moved(
    logs: Mapping[str, float], log_factors: Mapping[str, float], *, floor: float
) -> dict[str, float]:
    """Capitals after one request; one below ``floor`` is raised to it before."""
    # One that joins late brings no more than the average, which it therefore cannot raise.
    joining = min(0.0, _log_average(logs))
    return {
        name: max(logs.get(name, joining), floor) + log_factors.get(name, 0.0)
        for name in dict.fromkeys((*logs, *log_factors))
    }


def _log_average(logs: Mapping[str, float]) -> float:
    if not logs:
        return 0.0
    top = max(logs.values())
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(log - top) for log in logs.values()) / len(logs))
