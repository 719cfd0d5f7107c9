"""Measures probabilities against labels: what bans catch, what they catch by mistake, with intervals.

Knows nothing of files, policies, or of where the probabilities come from. Needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification.intervals import Rate
from gateway.classification.rows import Row, labels_of
from gateway.classification.scoring import Probabilities
from gateway.types import DOMAINS

HALF = 0.5
"""Where precision, recall and F1 are given for a domain that nothing bans."""
NUM_BINS = 10
"""Of the reliability diagram: equally wide, from 0 to 1."""
NONE = "none"
"""Stands for the domain of a row that has none, and for a language, slice or source that is not said."""

Booleans = npt.NDArray[np.bool_]


class Bin(msgspec.Struct, frozen=True):
    """One bar of a reliability diagram: the rows with a probability from ``low`` to ``high``."""

    low: float
    high: float
    rows: int
    mean_probability: float
    positive: float
    """The share of them that do belong to the domain."""


class DomainReport(msgspec.Struct, frozen=True, kw_only=True):
    """One domain."""

    domain: str
    rows: int
    threshold: float
    """The lowest bar of the policy's bans, or 0.5."""
    banned: bool
    """Whether the policy has such a bar."""
    recall: Rate
    precision: Rate
    false_alarms: Rate
    """Among the rows of other domains, those called positive."""
    f1: float
    """At 0.5, whatever the bar."""
    average_precision: float
    calibration_error: float
    """Expected: the mean distance of probability and share over the bins, weighted by their rows."""
    bins: tuple[Bin, ...]


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """The guarded domains taken together: does a row of any of them reach the bar of any of them?"""

    domains: tuple[str, ...]
    recall: Rate
    false_bans: Rate
    """Among the rows of none of them."""


class Group(msgspec.Struct, frozen=True):
    """The rows of one language, slice or source."""

    name: str
    rows: int
    recall: Rate
    false_bans: Rate


class Mistake(msgspec.Struct, frozen=True, kw_only=True):
    """A row that a bar misses, or calls by mistake."""

    kind: str
    """``miss`` or ``false_alarm``."""
    domain: str
    probability: float
    row: int
    """Counted from 1 over all rows."""
    id: str
    domains: tuple[str, ...]
    lang: str
    slice: str
    source: str
    text: str | None = None
    """Only where it is asked for."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Probabilities on a set of rows."""

    rows: int
    macro_f1: float
    """Mean F1 at probability 0.5 over the domains that have rows."""
    top_is_right: Rate
    """Rows whose most probable domain is one of theirs."""
    guard: Guard
    domains: tuple[DomainReport, ...]
    confusion: Mapping[str, Mapping[str, int]]
    """First domain of the label → most probable domain → rows."""
    languages: tuple[Group, ...]
    slices: tuple[Group, ...]
    sources: tuple[Group, ...]
    mistakes: tuple[Mistake, ...] = ()


def evaluate(
    rows: Sequence[Row],
    probabilities: Probabilities,
    *,
    thresholds: Mapping[str, float],
    guarded: Sequence[str],
    show_errors: int = 0,
    show_text: bool = False,
) -> Report:
    """Hold the probabilities, shape (rows, domains), against the rows' labels.

    ``thresholds`` are the lowest bars of bans; those of the ``guarded`` domains are what the guard
    and the groups are about. ``show_errors`` is how many of the worst mistakes of each kind to list.
    """
    labels = labels_of(rows)
    bars = np.array([thresholds.get(domain, HALF) for domain in DOMAINS])
    reports = tuple(
        _domain(domain, probabilities[:, at], labels[:, at], thresholds.get(domain))
        for at, domain in enumerate(DOMAINS)
    )
    columns = [DOMAINS.index(domain) for domain in guarded]
    guard = _Guarded(labels[:, columns], probabilities[:, columns] >= bars[columns])
    top = probabilities.argmax(axis=1) if len(rows) else np.zeros(0, dtype=np.int64)
    everywhere = np.ones(len(rows), dtype=np.bool_)
    listed = _worst(rows, probabilities, labels, bars, columns, show_errors, show_text)
    return Report(
        rows=len(rows),
        macro_f1=_mean([report.f1 for report in reports if report.rows]),
        top_is_right=Rate.of(int(labels[np.arange(len(rows)), top].sum()), len(rows)),
        guard=Guard(
            domains=tuple(guarded),
            recall=guard.recall(everywhere),
            false_bans=guard.false_bans(everywhere),
        ),
        domains=reports,
        confusion=_confusion(rows, top),
        languages=_groups(rows, lambda row: row.lang, guard),
        slices=_groups(rows, lambda row: row.slice, guard),
        sources=_groups(rows, lambda row: row.family, guard),
        mistakes=tuple(listed),
    )


def any_of(cells: Booleans) -> Booleans:
    """Which rows have a true cell, shape (rows,)."""
    found: Booleans = np.logical_or.reduce(cells, axis=1)
    return found


class _Guarded:
    """Which rows belong to a guarded domain, and which reach the bar of one."""

    def __init__(self, labels: Booleans, reached: Booleans) -> None:
        self._belongs = any_of(labels)
        self._banned = any_of(reached)

    def recall(self, at: Booleans) -> Rate:
        belongs, banned = self._belongs[at], self._banned[at]
        return Rate.among(banned, belongs)

    def false_bans(self, at: Booleans) -> Rate:
        belongs, banned = self._belongs[at], self._banned[at]
        return Rate.among(banned, ~belongs)


def _domain(
    domain: str, probability: Probabilities, positive: Booleans, bar: float | None
) -> DomainReport:
    threshold = HALF if bar is None else bar
    called = probability >= threshold
    bins = _bins(probability, positive)
    return DomainReport(
        domain=domain,
        rows=int(positive.sum()),
        threshold=threshold,
        banned=bar is not None,
        recall=Rate.among(called, positive),
        precision=Rate.among(positive, called),
        false_alarms=Rate.among(called, ~positive),
        f1=_f1(probability >= HALF, positive),
        average_precision=average_precision(probability, positive),
        calibration_error=sum(
            each.rows * abs(each.mean_probability - each.positive) for each in bins
        )
        / max(len(probability), 1),
        bins=bins,
    )


def _bins(probability: Probabilities, positive: Booleans) -> tuple[Bin, ...]:
    place = np.minimum((probability * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    found = []
    for at in range(NUM_BINS):
        inside = place == at
        rows = int(inside.sum())
        mean = float(probability[inside].mean()) if rows else 0.0
        share = float(positive[inside].mean()) if rows else 0.0
        found.append(Bin(at / NUM_BINS, (at + 1) / NUM_BINS, rows, mean, share))
    return tuple(found)


def average_precision(probability: Probabilities, positive: Booleans) -> float:
    """Mean over the positive rows of the precision at each one's own probability; 0.0 without any."""
    if not positive.any():
        return 0.0
    order = np.argsort(-probability, kind="stable")
    hits = np.cumsum(positive[order])
    # Rows of equal probability are called together: all take the precision at the last of them.
    last = np.searchsorted(-probability[order], -probability[order], side="right") - 1
    precision = hits[last] / (last + 1)
    return float(precision[positive[order]].mean())


def _f1(called: Booleans, positive: Booleans) -> float:
    both, either = int((called & positive).sum()), int(called.sum()) + int(positive.sum())
    return 2 * both / either if either else 0.0


def _confusion(rows: Sequence[Row], top: npt.NDArray[np.int64]) -> Mapping[str, Mapping[str, int]]:
    counts = {true: dict.fromkeys(DOMAINS, 0) for true in (*DOMAINS, NONE)}
    for row, at in zip(rows, top, strict=True):
        counts[row.domains[0] if row.domains else NONE][DOMAINS[at]] += 1
    return {true: found for true, found in counts.items() if any(found.values())}


def _groups(
    rows: Sequence[Row], name_of: Callable[[Row], str], guard: _Guarded
) -> tuple[Group, ...]:
    names = np.array([name_of(row) or NONE for row in rows], dtype=object)
    groups = []
    for name in sorted(set(names)):
        inside = names == name
        recall, false_bans = guard.recall(inside), guard.false_bans(inside)
        groups.append(Group(name, int(inside.sum()), recall, false_bans))
    return tuple(groups)


def _worst(
    rows: Sequence[Row],
    probabilities: Probabilities,
    labels: Booleans,
    bars: Probabilities,
    columns: Sequence[int],
    count: int,
    show_text: bool,
) -> Iterable[Mistake]:
    for column in columns:
        probability, positive = probabilities[:, column], labels[:, column]
        called = probability >= bars[column]
        for kind, wrong, order in (
            ("miss", positive & ~called, np.argsort(probability, kind="stable")),
            ("false_alarm", called & ~positive, np.argsort(-probability, kind="stable")),
        ):
            for at in [at for at in order if wrong[at]][:count]:
                row = rows[at]
                yield Mistake(
                    kind=kind,
                    domain=DOMAINS[column],
                    probability=float(probability[at]),
                    row=int(at) + 1,
                    id=row.id,
                    domains=row.domains,
                    lang=row.lang,
                    slice=row.slice,
                    source=row.source,
                    text="\n".join(row.texts()) if show_text else None,
                )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
