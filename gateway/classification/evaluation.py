"""Measures a domain model on labelled rows: precision, recall, F1 and average precision, with bounds.

Knows nothing of files or of how the model was trained. Needs numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification.rows import Row, labels_of
from gateway.classification.text_model import TextModel
from gateway.types import DOMAINS

THRESHOLDS = (0.10, 0.50, 0.60)
"""Where recall and false alarms are reported: those that the shipped policy uses."""
_Z95 = 1.959963984540054

Booleans = npt.NDArray[np.bool_]


class AtThreshold(msgspec.Struct, frozen=True):
    """What calling every row at or above ``threshold`` positive would do."""

    threshold: float
    recall: float
    recall_low: float
    recall_high: float
    """Wilson 95 % bounds."""
    precision: float
    false_alarms: float
    """Share of the rows of other domains that are called positive."""


class DomainReport(msgspec.Struct, frozen=True):
    """One domain; precision, recall and F1 at probability 0.5."""

    domain: str
    rows: int
    precision: float
    recall: float
    f1: float
    average_precision: float
    thresholds: tuple[AtThreshold, ...]


class Report(msgspec.Struct, frozen=True):
    """A model on a set of rows."""

    rows: int
    macro_f1: float
    """Mean F1 at probability 0.5 over the domains that have rows."""
    top_is_right: float
    """Share of rows whose most probable domain is one of theirs."""
    false_bans: float
    """Share of rows neither medical nor legal that reach 0.10 for medical or legal."""
    domains: tuple[DomainReport, ...]


def evaluate(model: TextModel, rows: Sequence[Row]) -> Report:
    """Score every row as a request of its own."""
    return report_on(
        np.array([model.probabilities(row.texts(), row.roles())[0] for row in rows]), rows
    )


def report_on(probabilities: npt.NDArray[np.float32], rows: Sequence[Row]) -> Report:
    """What probabilities of shape (rows, domains) are worth."""
    labels = labels_of(rows)
    reports = tuple(
        _domain_report(domain, probabilities[:, column], labels[:, column])
        for column, domain in enumerate(DOMAINS)
    )
    ordinary = ~labels[:, :2].any(axis=1)
    banned = (probabilities[:, :2] >= THRESHOLDS[0]).any(axis=1)
    top = probabilities.argmax(axis=1)
    return Report(
        rows=len(rows),
        macro_f1=_mean([report.f1 for report in reports if report.rows]),
        top_is_right=float(labels[np.arange(len(rows)), top].mean()),
        false_bans=_ratio(int((banned & ordinary).sum()), int(ordinary.sum())),
        domains=reports,
    )


def _domain_report(
    domain: str, probability: npt.NDArray[np.float32], positive: Booleans
) -> DomainReport:
    half = _at(0.5, probability, positive)
    return DomainReport(
        domain=domain,
        rows=int(positive.sum()),
        precision=half.precision,
        recall=half.recall,
        f1=_ratio(2 * half.precision * half.recall, half.precision + half.recall),
        average_precision=average_precision(probability, positive),
        thresholds=tuple(_at(threshold, probability, positive) for threshold in THRESHOLDS),
    )


def _at(threshold: float, probability: npt.NDArray[np.float32], positive: Booleans) -> AtThreshold:
    called = probability >= threshold
    hits, all_positive = int((called & positive).sum()), int(positive.sum())
    low, high = wilson(hits, all_positive)
    return AtThreshold(
        threshold=threshold,
        recall=_ratio(hits, all_positive),
        recall_low=low,
        recall_high=high,
        precision=_ratio(hits, int(called.sum())),
        false_alarms=_ratio(int((called & ~positive).sum()), int((~positive).sum())),
    )


def average_precision(probability: npt.NDArray[np.float32], positive: Booleans) -> float:
    """Mean over the positive rows of the precision at each one's own probability; 0.0 without any."""
    if not positive.any():
        return 0.0
    order = np.argsort(-probability, kind="stable")
    hits = np.cumsum(positive[order])
    # Rows of equal probability are called together: all take the precision at the last of them.
    last = np.searchsorted(-probability[order], -probability[order], side="right") - 1
    precision = hits[last] / (last + 1)
    return float(precision[positive[order]].mean())


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The Wilson 95 % interval of a share; (0, 1) when nothing was counted."""
    if total == 0:
        return 0.0, 1.0
    share, square = hits / total, _Z95**2
    centre = (share + square / (2 * total)) / (1 + square / total)
    spread = _Z95 * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    spread /= 1 + square / total
    return max(centre - spread, 0.0), min(centre + spread, 1.0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
