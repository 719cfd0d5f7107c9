"""Measures two opinions of the same rows: each alone, either of them, and both in one score.

They are compared where they cry wolf equally often, since any of them finds more at a lower bar.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.types import DOMAINS

BANNED = ("medical", "legal")
BAR = 0.10
"""The probability from which on the shipped policy bans them."""

Booleans = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]


class Found(msgspec.Struct, frozen=True):
    """What one way to judge finds of the medical and legal rows, and how often it is wrong."""

    way: str
    recall: float
    false_bans: float
    """Share of the rows that are neither."""
    recall_at_equal: float
    """With its bar moved until its false bans are those of the first opinion at `BAR`."""


def compare(
    text: Floats, probe: Floats, labels: Booleans, fold_of: npt.NDArray[np.int64]
) -> tuple[Found, ...]:
    """The text model, the probe, either of them, and a stack of both fitted outside each row's fold.

    All are probabilities or labels [rows, domains].
    """
    columns = [DOMAINS.index(domain) for domain in BANNED]
    wanted: Booleans = np.asarray(labels[:, columns].any(axis=1))
    text, probe = text[:, columns], probe[:, columns]
    suspicion = {
        "text model": text.max(axis=1),
        "probe": probe.max(axis=1),
        "either": np.maximum(text, probe).max(axis=1),
        "stack": _stacked(text, probe, labels[:, columns], fold_of).max(axis=1),
    }
    false_bans = float((suspicion["text model"][~wanted] >= BAR).mean())
    return tuple(_found(way, score, wanted, false_bans) for way, score in suspicion.items())


def _found(way: str, score: Floats, wanted: Booleans, false_bans: float) -> Found:
    called = score >= BAR
    bar = np.quantile(score[~wanted], 1 - false_bans)
    return Found(
        way,
        float(called[wanted].mean()),
        float(called[~wanted].mean()),
        float((score[wanted] > bar).mean()),
    )


def _stacked(
    text: Floats, probe: Floats, labels: Booleans, fold_of: npt.NDArray[np.int64]
) -> Floats:
    from sklearn.linear_model import LogisticRegression

    stacked = np.zeros_like(text)
    for column in range(text.shape[1]):
        both = np.stack([_logit(text[:, column]), _logit(probe[:, column])], axis=1)
        for fold in set(fold_of.tolist()):
            inside = fold_of == fold
            if len(set(labels[~inside, column].tolist())) < 2:
                continue
            fitted = LogisticRegression(C=1e3).fit(both[~inside], labels[~inside, column])
            stacked[inside, column] = fitted.predict_proba(both[inside])[:, 1]
    return stacked


def _logit(probability: Floats) -> Floats:
    clipped = np.clip(probability, 1e-6, 1 - 1e-6)
    logits: Floats = np.log(clipped / (1 - clipped)).astype(np.float32)
    return logits
