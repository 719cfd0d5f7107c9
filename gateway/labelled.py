"""The requests of the decision log as scored rows: what the classifier said, and what people said later.

Needs no text, which the log does not hold: the scores are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gateway.audit.query import Entry
from gateway.classification.evaluation import Booleans
from gateway.classification.promise import Labelled
from gateway.classification.rows import Corpus
from gateway.classification.scoring import Probabilities, vector
from gateway.types import DOMAINS

SOURCE = "decision log"


class Logged(NamedTuple):
    """What a stretch of the log holds of one classifier."""

    probabilities: Probabilities
    """Of every request, shape (requests, domains)."""
    scored: Probabilities
    """Of those with feedback, shape (labelled, domains)."""
    labels: Booleans
    """What the feedback says, shape (labelled, domains)."""
    others: int
    """Requests that another classifier scored, that a classifier failed on or did not read whole."""

    @property
    def labelled(self) -> Labelled:
        """Those with feedback, as rows of one source."""
        count = len(self.labels)
        corpora = (Corpus(SOURCE, "", count),)
        return Labelled(self.scored, self.labels, [SOURCE] * count, corpora)


def logged(entries: Iterable[Entry], classifier_hash: str, *, by: Collection[str] = ()) -> Logged:
    """The requests that the classifier with this hash scored, and the last feedback on each.

    ``by`` is whose feedback counts; empty: everybody's.
    """
    scores: list[Probabilities] = []
    labels: list[list[bool]] = []
    labelled: list[int] = []
    others = 0
    for entry in entries:
        signals = entry.decision.signals
        if (
            classifier_hash not in signals.classifiers.values()
            or signals.error is not None
            or signals.truncated
        ):
            others += 1
            continue
        given = [one for one in entry.feedback if not by or one.by in by]
        if given:
            labelled.append(len(scores))
            labels.append([domain in given[-1].domains for domain in DOMAINS])
        scores.append(vector(signals.items))
    return Logged(_rows(scores), _rows(scores)[labelled], _labels(labels), others)


def merged(parts: Iterable[Logged]) -> Logged:
    """Several stretches as one; none is an empty one."""
    several = [Logged(_rows([]), _rows([]), _labels([]), 0), *parts]
    return Logged(
        np.concatenate([part.probabilities for part in several]),
        np.concatenate([part.scored for part in several]),
        np.concatenate([part.labels for part in several]),
        sum(part.others for part in several),
    )


def _rows(scores: Sequence[Probabilities]) -> Probabilities:
    return np.array(scores, dtype=np.float64).reshape(-1, len(DOMAINS))


def _labels(labels: Sequence[Sequence[bool]]) -> Booleans:
    return np.array(labels, dtype=np.bool_).reshape(-1, len(DOMAINS))
