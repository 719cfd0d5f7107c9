"""Has the traffic moved away from the rows that a contract was measured on?

Two questions for each domain of the contract: are the scores distributed as they were, and do people's
labels say that more is missed, or banned by mistake, than the contract says?

Scores are compared by the population stability index, PSI = sum((o - e) ln(o / e)) over ten cells that
each took about a tenth of the contract's rows, and by the Kolmogorov-Smirnov distance with its two-sample
bound sqrt(-ln(alpha / 2) / 2 * (n + m) / (n m)); it is taken at the contract's cell edges, so that it can
only be too small. An index is an alarm only where the distance shows that it is no accident.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
import numpy as np

from gateway.classification.contract import Contract, DomainContract
from gateway.classification.evaluation import Booleans, any_of
from gateway.classification.intervals import Rate, lower_bound
from gateway.classification.promise import Labelled
from gateway.classification.scoring import Probabilities, vector
from gateway.types import DOMAINS, Signals

PSI_WATCH = 0.1
PSI_ALARM = 0.25
KS_ALPHA = 0.01
"""How often the distance passes its bound by accident, for each domain."""
MIN_REQUESTS = 200
"""Fewer scores say nothing about a distribution in ten cells."""
WINDOW_REQUESTS = 5000
"""How many of the last requests the metric is about."""
_CELLS = 10


class Level(StrEnum):
    """What somebody should do: nothing, look at it, act; or wait for more requests."""

    OK = "ok"
    UNKNOWN = "unknown"
    WATCH = "watch"
    ALARM = "alarm"


_ORDER = tuple(Level)


class DomainDrift(msgspec.Struct, frozen=True, kw_only=True):
    """One domain of the contract."""

    domain: str
    threshold: float
    level: Level
    reasons: tuple[str, ...]
    psi: float | None
    """None where there are too few requests."""
    ks: float | None
    ks_bound: float | None
    recall: Rate
    """Of the requests that people labelled with the domain."""
    miss_bound: float
    """The miss rate is at least this, with the contract's confidence (one-sided, exact)."""
    false_bans: Rate
    """Of the labelled requests of no domain of the contract."""


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """All domains of the contract."""

    level: Level
    """The worst of them."""
    requests: int
    labelled: int
    classifier_hash: str
    made_on: str
    """The contract's date."""
    domains: tuple[DomainDrift, ...]


def drift(contract: Contract, probabilities: Probabilities, labelled: Labelled) -> DriftReport:
    """Hold the scores of traffic, shape (requests, domains), and its labels against the contract."""
    columns = [DOMAINS.index(one.domain) for one in contract.domains]
    others = ~any_of(labelled.labels[:, columns])
    domains = tuple(
        _domain(contract, one, probabilities[:, at], labelled, others)
        for one, at in zip(contract.domains, columns, strict=True)
    )
    return DriftReport(
        level=max((one.level for one in domains), key=_ORDER.index),
        requests=len(probabilities),
        labelled=len(labelled.labels),
        classifier_hash=contract.classifier_hash,
        made_on=contract.made_on,
        domains=domains,
    )


def _domain(
    contract: Contract,
    one: DomainContract,
    scores: Probabilities,
    labelled: Labelled,
    others: Booleans,
) -> DomainDrift:
    at = DOMAINS.index(one.domain)
    reached, positive = labelled.probabilities[:, at] >= one.threshold, labelled.labels[:, at]
    recall = Rate.among(reached, positive)
    false_bans = Rate.among(reached, others)
    found: list[tuple[Level, str]] = []
    index = distance = bound = None
    if len(scores) < MIN_REQUESTS:
        found.append((Level.UNKNOWN, f"{len(scores)} requests, {MIN_REQUESTS} are needed"))
    else:
        counts = one.scores.count(scores)
        index, distance = psi(one.scores.counts, counts), ks(one.scores.counts, counts)
        bound = ks_bound(one.scores.rows, len(scores))
        found += _moved(index, distance, bound)
    misses = recall.rows - recall.hits
    miss_bound = lower_bound(misses, recall.rows, contract.confidence)
    if miss_bound > contract.miss_rate:
        said = f"feedback: {misses} of {recall.rows} missed, the target is {contract.miss_rate:.2%}"
        found.append((Level.ALARM, said))
    elif misses > contract.miss_rate * recall.rows:
        found.append((Level.WATCH, f"feedback: {misses} of {recall.rows} missed, too few to tell"))
    if lower_bound(false_bans.hits, false_bans.rows, contract.confidence) > one.false_bans.high:
        said = f"feedback: {false_bans.hits} of {false_bans.rows} banned by mistake"
        found.append((Level.WATCH, f"{said}, the contract has {one.false_bans.share:.1%}"))
    return DomainDrift(
        domain=one.domain,
        threshold=one.threshold,
        level=max((level for level, _ in found), key=_ORDER.index, default=Level.OK),
        reasons=tuple(reason for _, reason in found),
        psi=index,
        ks=distance,
        ks_bound=bound,
        recall=recall,
        miss_bound=miss_bound,
        false_bans=false_bans,
    )


def _moved(index: float, distance: float, bound: float) -> list[tuple[Level, str]]:
    said = f"scores moved: PSI {index:.2f}, KS {distance:.3f} (bound {bound:.3f})"
    if index >= PSI_ALARM and distance > bound:
        return [(Level.ALARM, said)]
    return [(Level.WATCH, said)] if index >= PSI_WATCH or distance > bound else []


def psi(expected: Sequence[int], observed: Sequence[int]) -> float:
    """The population stability index of two counts of the same cells, which are merged to ten.

    Half a row is added to every cell, so that an empty one is no infinity.
    """
    merged = np.array(_merged(expected, observed), dtype=np.float64) + 0.5
    shares = merged / merged.sum(axis=0)
    return float(((shares[:, 1] - shares[:, 0]) * np.log(shares[:, 1] / shares[:, 0])).sum())


def _merged(expected: Sequence[int], observed: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring cells together, until each has a tenth of what is expected."""
    wanted = sum(expected) / _CELLS
    cells: list[tuple[int, int]] = []
    here = (0, 0)
    for e, o in zip(expected, observed, strict=True):
        here = (here[0] + e, here[1] + o)
        if here[0] >= wanted:
            cells.append(here)
            here = (0, 0)
    # What is left joins the last cell: it is too small to be one.
    last = cells.pop() if cells else (0, 0)
    return [*cells, (last[0] + here[0], last[1] + here[1])]


def ks(expected: Sequence[int], observed: Sequence[int]) -> float:
    """The largest distance of the two distribution functions at the cells' edges."""
    shares = [np.cumsum(counts) / max(sum(counts), 1) for counts in (expected, observed)]
    return float(np.abs(shares[0] - shares[1]).max())


def ks_bound(expected: int, observed: int, alpha: float = KS_ALPHA) -> float:
    """What the distance of so many rows passes with probability ``alpha`` at most, asymptotically."""
    return math.sqrt(-math.log(alpha / 2) / 2 * (expected + observed) / (expected * observed))


class ScoreWindow:
    """The scores of the last requests, kept as cells of the contract: for a metric, at no cost."""

    def __init__(self, contract: Contract, size: int = WINDOW_REQUESTS) -> None:
        self._contract = contract
        self._rows: deque[tuple[int, ...]] = deque(maxlen=size)

    def add(self, signals: Signals) -> None:
        """Count a request, if the contract's classifier has read it whole."""
        known = self._contract.fits(tuple(signals.classifiers.values()))
        if not known or signals.error is not None or signals.truncated:
            return
        scores = vector(signals.items)
        self._rows.append(
            tuple(
                int(np.searchsorted(one.scores.edges, scores[DOMAINS.index(one.domain)]))
                for one in self._contract.domains
            )
        )

    def psi(self) -> Mapping[str, float]:
        """The index of each domain of the contract; NaN until there are enough requests."""
        if len(self._rows) < MIN_REQUESTS:
            return {one.domain: math.nan for one in self._contract.domains}
        cells = np.array(self._rows)
        return {
            one.domain: psi(
                one.scores.counts,
                np.bincount(cells[:, at], minlength=len(one.scores.counts)).tolist(),
            )
            for at, one in enumerate(self._contract.domains)
        }
