"""Fits the third stage on labelled rows: its head, and how much it counts.

Needs scikit-learn and torch, which running a gateway does not. Knows no files.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification import features, head_training
from gateway.classification.disguise import disguised
from gateway.classification.reader import Head, Ids, passage
from gateway.classification.rows import Row, labels_of
from gateway.classification.stack import Stack
from gateway.classification.stacking import OperatingPoints, kinds_of, moved, weights_of
from gateway.classification.stages import Floats
from gateway.classification.transformer import FEATURES, Transformer
from gateway.types import DOMAINS

MADE = 0.1
"""Rows that are also learnt from in another wrapping, for each real one."""
EPOCHS = 8
_BATCH_PIECES = 600

Booleans = npt.NDArray[np.bool_]


class Part(msgspec.Struct, frozen=True):
    """What the transformer makes of some rows."""

    seen: Floats
    """Shape (rows, FEATURES); zeros where it does not read."""
    read: Booleans
    """Which rows it reads, shape (rows,)."""
    labels: Booleans
    """Shape (rows, domains)."""


def part(model: Transformer, rows: Sequence[Row]) -> Part:
    """Rows of one length are read together."""
    ids = [_passage(model, row) for row in rows]
    seen = np.zeros((len(rows), FEATURES), dtype=np.float32)
    order = sorted((len(own), at) for at, own in enumerate(ids) if own)
    start = 0
    while start < len(order):
        batch = [at for _, at in order[start : start + max(_BATCH_PIECES // order[start][0], 1)]]
        seen[batch] = model.read([ids[at] or [] for at in batch])
        start += len(batch)
    read = np.array([own is not None for own in ids], dtype=np.bool_)
    return Part(seen, read, labels_of(rows))


def _passage(model: Transformer, row: Row) -> Ids | None:
    return passage(model.pieces, [features.normalise(text) for text in row.texts()])


def made_of(rows: Sequence[Row], seed: int) -> list[Row]:
    """Some of the rows in other wrappings."""
    rng = np.random.default_rng(seed)
    return [disguised(row, rng) for row in rows if rng.random() < MADE]


def fit_head(parts: Sequence[Part], seed: int) -> Head:
    """On those of the rows that are read."""
    seen = np.concatenate([some.seen[some.read] for some in parts])
    labels = np.concatenate([some.labels[some.read] for some in parts])
    weight = np.ones(labels.shape, dtype=np.float32)
    fitted = head_training.fit(head_training.Samples(seen, labels, weight), seed, epochs=EPOCHS)
    return Head(
        fitted["head1"].astype(np.float32),
        fitted["head1_bias"],
        fitted["head2"].astype(np.float32),
        fitted["head2_bias"],
    )


def stacked(
    base: Stack, evidence: Floats, labels: Booleans, read: Booleans, points: OperatingPoints
) -> tuple[Stack, Stack]:
    """The two stages' stack and the reader's, with one operating point for both of them.

    ``evidence``, of shape (rows, kinds, domains), has the reader's scores last. Both make a domain's log
    odds first: so that each misses where a miss spares most false alarms.
    """
    plain_weights, plain_bias = base.weights.copy(), base.bias.copy()
    weights = np.zeros(evidence.shape[1:], dtype=np.float32)
    bias = np.zeros(len(DOMAINS), dtype=np.float32)
    last = evidence.shape[1] - 1
    for at, domain in enumerate(DOMAINS):
        own, positive = evidence[:, :, at].astype(np.float64), labels[:, at]
        kinds = (*kinds_of(domain, last), last)
        weights[:, at] = weights_of(own[read], positive[read], kinds)
        plain, careful = own[:, :-1] @ base.weights[:, at], own @ weights[:, at]
        plain_scale, plain_shift = _log_odds(plain, positive)
        scale, shift = _log_odds(careful[read], positive[read])
        scores = np.where(read, careful * scale + shift, plain * plain_scale + plain_shift)
        move = moved(domain, scores, positive, points)
        plain_weights[:, at] *= plain_scale
        plain_bias[at] = plain_shift + move
        weights[:, at] *= scale
        bias[at] = shift + move
    return Stack(plain_weights, plain_bias), Stack(weights, bias)


def combined(plain: Stack, careful: Stack, evidence: Floats, read: Booleans) -> Floats:
    """The logits of rows as a gateway works them out, shape (rows, domains)."""
    logits: Floats = np.where(
        read[:, None], careful.logits(evidence), plain.logits(evidence[:, :-1])
    )
    return logits


def _log_odds(scores: npt.NDArray[np.float64], positive: Booleans) -> tuple[float, float]:
    """What a score times and plus makes its log odds."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=1.0, max_iter=500).fit(scores[:, None], positive)
    return max(float(fitted.coef_[0, 0]), 1e-3), float(fitted.intercept_[0])
