"""How far pairs of answers say the same, token by token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gateway.classification.intervals import Rate


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Of some pairs of answers."""

    exact: Rate
    """Pairs whose tokens are all the same, with the Wilson interval."""
    tokens: float
    """The share of positions with the same token in both; 1.0 where there are none."""
    positions: int


def agreement(pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Agreement:
    """Over the positions up to the end of the longer of two answers.

    A position that only one of them has is a difference: cut to the shorter one, as is often done, an
    answer would agree with every longer one that begins with it.
    """
    count = exact = positions = same = 0
    for one, other in pairs:
        count += 1
        exact += tuple(one) == tuple(other)
        positions += max(len(one), len(other))
        same += sum(a == b for a, b in zip(one, other, strict=False))
    tokens = same / positions if positions else 1.0
    return Agreement(exact=Rate.of(exact, count), tokens=tokens, positions=positions)
