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
_CHUNK = 1000
"""Drawn labellings that are there at a time."""
_TIE = 1e-9
"""Statistics that differ by rounding alone are equal."""


class TwoSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a test of two samples came to."""

    statistic: float
    p: float
    enumerated: bool
    """Whether every labelling was tried, or some were drawn."""
    least: float
    """The smallest p that could have come out."""


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
    if _number(sizes) <= draws + 1:
        ways = [_all_of_a_block(size) for size in sizes]
        rows = [np.concatenate(row) for row in itertools.product(*ways)] if ways else []
        return Labellings(np.array(rows).reshape(len(rows), 2 * sum(sizes)), True)
    return Labellings(_drawn(np.random.default_rng(seed), sizes, draws), False)


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
    if _number(sizes) <= draws + 1:
        values = statistic(labellings(sizes, draws=draws).signs)
        count, reached = len(values), _reached(values, observed)
        least = _reached(values, float(values.max())) / count
        return TwoSample(statistic=observed, p=reached / count, enumerated=True, least=least)
    generator = np.random.default_rng(seed)
    reached = 0
    # Some at a time: thousands of labellings of thousands of answers would fill the memory.
    for start in range(0, draws, _CHUNK):
        signs = _drawn(generator, sizes, min(_CHUNK, draws - start))
        reached += _reached(statistic(signs), observed)
    p, least = (1 + reached) / (1 + draws), 1 / (1 + draws)
    return TwoSample(statistic=observed, p=p, enumerated=False, least=least)


def _number(sizes: Sequence[int]) -> int:
    """Of all labellings."""
    return math.prod(math.comb(2 * size, size) for size in sizes)


def _reached(values: npt.NDArray[np.float64], bound: float) -> int:
    return int((values >= bound - _TIE * max(1.0, abs(bound))).sum())


def _drawn(generator: np.random.Generator, sizes: Sequence[int], count: int) -> Signs:
    """[count, items]."""
    blocks = [
        generator.permuted(np.tile(np.repeat([1.0, -1.0], size), (count, 1)), axis=1)
        for size in sizes
    ]
    return np.concatenate(blocks, axis=1)


def _all_of_a_block(size: int) -> list[npt.NDArray[np.float64]]:
    """The real labelling first."""
    found = []
    for chosen in itertools.combinations(range(2 * size), size):
        signs = np.full(2 * size, -1.0)
        signs[list(chosen)] = 1.0
        found.append(signs)
    return found
