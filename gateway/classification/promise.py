"""Makes a contract: chooses the bars that keep a target miss rate, or measures bars that are given.

A bar is an order statistic of the scores of a domain's own rows. The share of later rows below the
k-th smallest of n scores follows Beta(k, n + 1 - k) whatever the law of the scores (with equal scores it
is smaller), so that the bound holds although the bar was chosen on the same rows: it is the exact
binomial bound for the k - 1 rows that are missed. Rows must be drawn like later requests, and
independently; rows of one source are less than that.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gateway.classification.contract import Contract, DomainContract, Scores
from gateway.classification.evaluation import Booleans, any_of
from gateway.classification.intervals import (
    Rate,
    allowed_misses,
    rows_needed,
    upper_bound,
)
from gateway.classification.rows import Corpus
from gateway.classification.scoring import Probabilities
from gateway.errors import ConfigError, Problem
from gateway.types import DOMAINS

_STEP = 1e-4
"""Bars are rounded down to it, which can only catch more."""
MIN_SOURCE_ROWS = 20
"""A source with fewer rows of a domain does not count as its worst one."""


class Labelled(NamedTuple):
    """Scored rows whose domains somebody has said."""

    probabilities: Probabilities
    """Shape (rows, domains)."""
    labels: Booleans
    """Shape (rows, domains)."""
    sources: Sequence[str]
    corpora: tuple[Corpus, ...]


class Target(NamedTuple):
    """What a bar has to keep."""

    miss_rate: float
    confidence: float


def choose(rows: Labelled, domains: Sequence[str], target: Target) -> Mapping[str, float]:
    """For each domain the highest bar whose miss rate is within the target.

    Raises ConfigError naming every domain that has too few rows, or rows that no bar can catch.
    """
    bars: dict[str, float] = {}
    problems: list[Problem] = []
    for domain in domains:
        at = DOMAINS.index(domain)
        scores = np.sort(rows.probabilities[rows.labels[:, at], at])
        misses = allowed_misses(len(scores), target.miss_rate, target.confidence)
        if misses < 0:
            problems.append(_too_few(domain, len(scores), target))
        elif (bar := _round_down(float(scores[misses]))) <= 0:
            problems.append(_not_told_apart(domain, int((scores <= 0).sum()), len(scores)))
        else:
            bars[domain] = bar
    if problems:
        raise ConfigError(problems)
    return bars


def promise(
    rows: Labelled,
    bars: Mapping[str, float],
    target: Target,
    *,
    classifier: str,
    classifier_hash: str,
    held_out: bool = False,
    chosen: bool = True,
    today: datetime.date | None = None,
) -> Contract:
    """What these bars do on these rows. Raises ConfigError for a domain without rows."""
    columns = [DOMAINS.index(domain) for domain in bars]
    others = ~any_of(rows.labels[:, columns])
    reached = rows.probabilities[:, columns] >= np.array(list(bars.values()))
    if without := [d for d, at in zip(bars, columns, strict=True) if not rows.labels[:, at].any()]:
        hint = "label some, or leave the domain out"
        raise ConfigError([Problem(f"no row is {', '.join(without)}", path="rows", hint=hint)])
    return Contract(
        made_on=(today or datetime.datetime.now(datetime.UTC).date()).isoformat(),
        classifier=classifier,
        classifier_hash=classifier_hash,
        held_out=held_out,
        chosen=chosen,
        miss_rate=target.miss_rate,
        confidence=target.confidence,
        rows=len(rows.probabilities),
        sources=rows.corpora,
        false_bans=Rate.among(any_of(reached), others),
        domains=tuple(
            _domain(rows, domain, at, bars[domain], others, target)
            for domain, at in zip(bars, columns, strict=True)
        ),
    )


def _domain(
    rows: Labelled, domain: str, at: int, bar: float, others: Booleans, target: Target
) -> DomainContract:
    positive, reached = rows.labels[:, at], rows.probabilities[:, at] >= bar
    recall = Rate.among(reached, positive)
    source, worst = _worst_source(rows.sources, reached, positive)
    return DomainContract(
        domain=domain,
        threshold=bar,
        recall=recall,
        miss_bound=upper_bound(recall.rows - recall.hits, recall.rows, target.confidence),
        false_bans=Rate.among(reached, others),
        worst_source=source,
        worst_recall=worst,
        scores=Scores.of(rows.probabilities[:, at]),
    )


def _worst_source(
    sources: Sequence[str], reached: Booleans, positive: Booleans
) -> tuple[str, Rate | None]:
    names = np.array(sources, dtype=object)
    found = [
        (Rate.among(reached, positive & (names == name)), name) for name in sorted(set(sources))
    ]
    large = [(rate, name) for rate, name in found if rate.rows >= MIN_SOURCE_ROWS]
    if len(large) < 2:
        return "", None
    rate, name = min(large, key=lambda one: one[0].share)
    return name, rate


def _round_down(score: float) -> float:
    """``score`` on the grid; where the grid is too coarse for it, with two digits."""
    step = _STEP if score >= _STEP else 10.0 ** (math.floor(math.log10(score)) - 1) if score else 1
    rounded = round(math.floor(score / step + 1e-6) * step, 12)
    return rounded if rounded <= score else round(rounded - step, 12)


def _too_few(domain: str, rows: int, target: Target) -> Problem:
    needed = rows_needed(target.miss_rate, target.confidence)
    message = (
        f"{domain} has {rows} rows; a miss rate of {target.miss_rate:.2%} at "
        f"{target.confidence:.0%} confidence needs {needed} at least, with none of them missed"
    )
    hint = "label more"
    if rows:
        possible = 1 - (1 - target.confidence) ** (1 / rows)
        hint += f", or ask for what {rows} rows can show: --miss-rate {_round_up(possible):g}"
    return Problem(message, path="rows", hint=hint)


def _round_up(share: float) -> float:
    step = 10.0 ** (math.floor(math.log10(share)) - 1)
    return round(math.ceil(share / step) * step, 12)


def _not_told_apart(domain: str, zeros: int, rows: int) -> Problem:
    message = f"{zeros} of {rows} rows of {domain} have probability 0: no bar can catch them"
    return Problem(
        message, path="rows", hint="correct their labels, or train the classifier on such"
    )
