"""Weighs the evidence of both stages into probabilities, on rows whose sources the stages have not seen."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification.stack import BAN_DOMAINS, Stack
from gateway.classification.stages import SUSPICIOUS, Floats
from gateway.types import DOMAINS


class OperatingPoints(msgspec.Struct, frozen=True):
    """Where probabilities are used, which fixes the prior that they are stated for."""

    ban_probability: float = 0.10
    ban_miss_rate: float = 0.036
    """Share of a ban domain's rows that may stay below ``ban_probability``."""
    probability: float = 0.50
    """Where the best F1 of every other domain lies."""


def fit(evidence: Floats, labels: npt.NDArray[np.bool_], points: OperatingPoints) -> Stack:
    """``evidence`` of shape (rows, kinds, domains), ``labels`` of shape (rows, domains).

    Weights by logistic regression, never below zero: no evidence for a domain may speak against it.
    The bias moves each domain's operating point to where policies expect it.
    """
    weights = np.zeros(evidence.shape[1:], dtype=np.float32)
    bias = np.zeros(len(DOMAINS), dtype=np.float32)
    for column, domain in enumerate(DOMAINS):
        own, positive = evidence[:, :, column].astype(np.float64), labels[:, column]
        weights[:, column] = weights_of(own, positive, kinds_of(domain, own.shape[1]))
        bias[column] = moved(domain, own @ weights[:, column], positive, points)
    return Stack(weights, bias)


def moved(
    domain: str,
    scores: npt.NDArray[np.float64],
    positive: npt.NDArray[np.bool_],
    points: OperatingPoints,
) -> float:
    """What makes scores the logits of a domain, with its operating point where policies expect it."""
    if domain in BAN_DOMAINS:
        threshold = float(np.quantile(scores[positive], points.ban_miss_rate))
        wanted = points.ban_probability
    else:
        threshold, wanted = _best_f1(scores, positive), points.probability
    return float(np.log(wanted / (1.0 - wanted)) - threshold)


def kinds_of(domain: str, kinds: int) -> Sequence[int]:
    """Which of the two stages' ``kinds`` of evidence speak of a domain."""
    # In rows as short as most are, the typical window is the most suspicious one; in long texts it
    # is not, and a ban must not be diluted by what stands around a sentence.
    return SUSPICIOUS if domain in BAN_DOMAINS else range(kinds)


def weights_of(
    evidence: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_], kinds: Sequence[int]
) -> Floats:
    """Of the evidence of one domain, shape (rows, kinds): weights of which only ``kinds`` are not zero."""
    from sklearn.linear_model import LogisticRegression

    used = list(kinds)
    while True:
        fitted = LogisticRegression(C=1.0, max_iter=500).fit(evidence[:, used], positive)
        found = fitted.coef_[0]
        if len(used) == 1 or (found >= 0.0).all():
            break
        used.pop(int(np.argmin(found)))
    weights = np.zeros(evidence.shape[1], dtype=np.float32)
    # A domain that could not be told apart at all must not turn its ranking round.
    weights[used] = np.maximum(found, 1e-3)
    return weights


def _best_f1(scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]) -> float:
    """The score from which on calling a row positive gives the best F1."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order])
    f1 = 2.0 * hits / (np.arange(1, len(scores) + 1) + positive.sum())
    return float(scores[order[int(np.argmax(f1))]])
