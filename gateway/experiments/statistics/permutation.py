"""Permutation tests over blocks: which of the answers to a prompt came from which side is shuffled.

Where both sides follow the same law, all labellings of a block's items are equally likely, whatever
that law is and however it differs from block to block; so the p-value holds exactly, for any
statistic and any number of items (Fisher, The Design of Experiments, 1935).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

Signs = npt.NDArray[np.float64]
"""[labellings, items]: +1 for the first side, -1 for the second; the items block by block."""
DRAWS = 999
_TIE = 1e-9
"""Statistics that differ by rounding alone are equal."""


class TwoSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a test of two samples came to."""

    statistic: float
    p: float
    enumerated: bool
    """Whether every labelling was tried, or some were drawn."""


@dataclass(frozen=True)
class Labellings:
    """Labellings to compare with the real one, which is the first row where all are there."""

    signs: Signs
    enumerated: bool


def observed_labels(sizes: Sequence[int]) -> Signs:
    """The real labelling [1, items] of blocks with ``sizes`` items of each side, first side first."""
    blocks = [np.repeat([1.0, -1.0], size) for size in sizes]
    return np.concatenate(blocks)[None, :] if blocks else np.zeros((1, 0))


def labellings(sizes: Sequence[int], *, draws: int = DRAWS, seed: int = 0) -> Labellings:
    """All labellings that keep each side's number of items in each block, or ``draws`` of them at random.

    All of them where they are no more than ``draws`` + 1.
    """
    total = math.prod(math.comb(2 * size, size) for size in sizes)
    if total <= draws + 1:
        ways = [_all_of_a_block(size) for size in sizes]
        rows = [np.concatenate(row) for row in itertools.product(*ways)] if ways else []
        return Labellings(np.array(rows).reshape(len(rows), 2 * sum(sizes)), True)
    generator = np.random.default_rng(seed)
    blocks = [
        generator.permuted(np.tile(np.repeat([1.0, -1.0], size), (draws, 1)), axis=1)
        for size in sizes
    ]
    return Labellings(np.concatenate(blocks, axis=1), False)


def permutation_test(
    statistic: Callable[[Signs], npt.NDArray[np.float64]],
    sizes: Sequence[int],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> TwoSample:
    """How often a labelling has a ``statistic`` at least as large as the real one.

    ``statistic`` takes `Signs` and gives one value for each row. Of all labellings, p is their share;
    of some that were drawn it is (1 + those) / (1 + drawn), which is valid as well, not merely close
    (Phipson and Smyth, Permutation p-values should never be zero, 2010).
    """
    observed = float(statistic(observed_labels(sizes))[0])
    others = labellings(sizes, draws=draws, seed=seed)
    values = statistic(others.signs)
    reached = int((values >= observed - _TIE * max(1.0, abs(observed))).sum())
    count = len(values)
    p = reached / count if others.enumerated else (1 + reached) / (1 + count)
    return TwoSample(statistic=observed, p=p, enumerated=others.enumerated)


def _all_of_a_block(size: int) -> list[npt.NDArray[np.float64]]:
    """The real labelling first."""
    found = []
    for chosen in itertools.combinations(range(2 * size), size):
        signs = np.full(2 * size, -1.0)
        signs[list(chosen)] = 1.0
        found.append(signs)
    return found
