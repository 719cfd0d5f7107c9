"""Whether a classifier can tell two samples of answers apart: the classifier two-sample test.

A linear classifier (ridge regression on the signs of the sides) learns from some prompts and guesses
the sides of the answers to the others; the statistic is the share of right guesses, about one half
where there is nothing to learn (Lopez-Paz and Oquab, Revisiting classifier two-sample tests, ICLR
2017; Kim, Ramdas, Singh and Wasserman, Annals of Statistics 2021). It reads which tokens and pairs of
tokens an answer has, so it sees what all prompts have in common, such as hedges that are missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gateway.experiments.statistics.mmd import Answers
from gateway.experiments.statistics.permutation import DRAWS, Signs, TwoSample, permutation_test

Floats = npt.NDArray[np.float64]
NUM_FEATURES = 4096
FOLDS = 5
_TURN = 0x9E3779B1


def separation_test(
    blocks: Sequence[tuple[Answers, Answers]], *, draws: int = DRAWS, seed: int = 0
) -> TwoSample:
    """The share of answers whose side is guessed; ``blocks`` as in `mmd_test`.

    What the classifier has learnt is linear in the labels, so that one matrix gives the guesses of
    every labelling, and each is learnt from anew as a permutation test demands.
    """
    sizes = [len(one) for one, _ in blocks]
    hat = held_out_predictions([[*one, *other] for one, other in blocks])

    def statistic(signs: Signs) -> Floats:
        guesses = (signs @ hat.T) * signs
        right = (guesses > 1e-12) + 0.5 * (np.abs(guesses) <= 1e-12)
        shares: Floats = right.mean(axis=1) if signs.shape[1] else np.full(len(signs), 0.5)
        return shares

    return permutation_test(statistic, sizes, draws=draws, seed=seed)


def held_out_predictions(blocks: Sequence[Answers]) -> Floats:
    """[items, items]: times the signs of all items, what each is guessed to be by the others' folds.

    A fold is some of the blocks; of a single block, some of its answers.
    """
    features = _features(blocks)
    gram = features @ features.T
    folds = _folds([len(block) for block in blocks])
    hat = np.zeros_like(gram)
    for fold in np.unique(folds):
        train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        if not len(train):
            continue
        inner = gram[np.ix_(train, train)]
        ridge = max(float(np.trace(inner)) / len(train), 1e-9)
        weights = np.linalg.solve(inner + ridge * np.eye(len(train)), gram[np.ix_(train, test)])
        hat[np.ix_(test, train)] = weights.T
    return hat


def _folds(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    if len(sizes) == 1:
        return np.arange(sizes[0]) % (sizes[0] // 2) % FOLDS if sizes[0] else np.arange(0)
    return np.repeat(np.arange(len(sizes)) % FOLDS, sizes)


def _features(blocks: Sequence[Answers]) -> Floats:
    """Hashed counts of tokens and pairs of them, of length 1, less the mean of their block."""
    rows = []
    for block in blocks:
        counts = np.stack([_counts(answer) for answer in block]) if block else np.zeros((0, 1))
        rows.append(counts - counts.mean(axis=0, keepdims=True) if len(counts) else counts)
    return np.concatenate(rows) if rows else np.zeros((0, 1))


def _counts(answer: Sequence[int]) -> Floats:
    ids = np.asarray(answer, dtype=np.int64)
    pairs = ids[:-1] * 31 + ids[1:] + 1_000_003
    # The high bits: the low ones of a product are those of the low bits alone.
    slots = (np.concatenate([ids, pairs]) * _TURN % (1 << 32)) * NUM_FEATURES >> 32
    counts = np.sqrt(np.bincount(slots, minlength=NUM_FEATURES).astype(np.float64))
    norm = float(np.linalg.norm(counts))
    scaled: Floats = counts / norm if norm else counts
    return scaled
