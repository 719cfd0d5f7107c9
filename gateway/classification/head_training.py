"""Fits the head of the second stage on windows of labelled rows. Needs torch; a gateway does not."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from gateway.classification import features
from gateway.classification.disguise import disguised
from gateway.classification.encoder import LONG, SHORT, Encoder, Floats, pooled, windows
from gateway.classification.rows import Row, labels_of
from gateway.classification.synthetic import IS_SENSITIVE, SENSITIVE, Mixture, mixtures, noise
from gateway.classification.weights import Arrays
from gateway.types import DOMAINS

HIDDEN = 192
EPOCHS = 14
MAX_MIXTURE = 520
"""Characters: a mixture fits into one long window, so that its domains are the window's."""


class Samples(msgspec.Struct, frozen=True):
    """Windows to learn from."""

    seen: Floats
    """Shape (samples, what the head reads)."""
    labels: npt.NDArray[np.bool_]
    weight: Floats
    """Of each sample for each domain, shape (samples, domains)."""


def samples(encoder: Encoder, rows: Sequence[Row], mixture: Mixture, seed: int) -> Samples:
    """Windows of rows, and made-up ones from which the sensitive domains alone learn."""
    rng = np.random.default_rng(seed)
    made = [disguised(row, rng) for row in rows if rng.random() < _share(row)]
    made += mixtures(rows, mixture, seed, max_characters=MAX_MIXTURE)
    real = [*rows, *noise(mixture, seed)]
    parts = [
        _windows(encoder, real, LONG, for_all=True),
        _windows(encoder, made, LONG, for_all=False),
    ]
    # A sentence of an ordinary text is ordinary; one of a sensitive text need not be sensitive.
    ordinary = [row for row in rows if not SENSITIVE & set(row.domains)]
    parts.append(_windows(encoder, ordinary, SHORT, for_all=False, at_most=3))
    return concatenated([part for part in parts if part is not None])


def concatenated(parts: Sequence[Samples]) -> Samples:
    """All of them."""
    return Samples(
        np.concatenate([part.seen for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.weight for part in parts]),
    )


def _share(row: Row) -> float:
    return 0.9 if SENSITIVE & set(row.domains) else 0.35


def _windows(
    encoder: Encoder, rows: Sequence[Row], length: int, *, for_all: bool, at_most: int = 6
) -> Samples | None:
    totals, maxima, owner = [], [], []
    for index, row in enumerate(rows):
        blocks = encoder.blocks(features.normalise(" ".join(row.texts()))[:6_000])
        runs = windows(0, len(blocks), length)
        if length == SHORT and len(runs) == 1:
            continue
        starts, ends = np.array(runs[:: max(len(runs) // at_most, 1)], dtype=np.int64).T
        total, highest = pooled(blocks, starts, ends)
        totals.append(total)
        maxima.append(highest)
        owner += [index] * len(total)
    if not owner:
        return None
    owners = np.array(owner, dtype=np.int64)
    seen = np.concatenate(
        [
            encoder.seen(
                np.concatenate(totals[at : at + 500]), np.concatenate(maxima[at : at + 500])
            )
            for at in range(0, len(totals), 500)
        ]
    )
    # A long text has many windows and little more of a vote.
    vote = 1.0 / np.sqrt(np.bincount(owners, minlength=len(rows))[owners])
    weight = np.repeat(vote[:, None], len(DOMAINS), axis=1)
    if not for_all:
        weight[:, ~IS_SENSITIVE] = 0.0
    return Samples(seen, labels_of(rows)[owners], weight.astype(np.float32))


def fit(found: Samples, seed: int, *, epochs: int = EPOCHS) -> Arrays:
    """The head's arrays."""
    torch.manual_seed(seed)
    centre, spread = found.seen.mean(axis=0), found.seen.std(axis=0) + 1e-3
    seen = torch.from_numpy((found.seen - centre) / spread)
    labels = torch.from_numpy(found.labels.astype(np.float32))
    weight = torch.from_numpy(found.weight)
    first, last = nn.Linear(seen.shape[1], HIDDEN), nn.Linear(HIDDEN, len(DOMAINS))
    network = nn.Sequential(nn.Dropout(0.3), first, nn.ReLU(), nn.Dropout(0.4), last)
    steps = epochs * -(-len(seen) // 256)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(seen))
        for at in range(0, len(seen), 256):
            batch = order[at : at + 256]
            loss = functional.binary_cross_entropy_with_logits(
                network(seen[batch]), labels[batch], weight[batch], reduction="sum"
            )
            optimizer.zero_grad()
            (loss / len(batch)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    weights = first.weight.detach().numpy() / spread
    return {
        "head1": weights.T.astype(np.float16),
        "head1_bias": (first.bias.detach().numpy() - weights @ centre).astype(np.float32),
        "head2": last.weight.detach().numpy().T.astype(np.float16),
        "head2_bias": last.bias.detach().numpy().astype(np.float32),
    }
