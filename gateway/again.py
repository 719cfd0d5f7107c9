"""Decoding again: what a standard run of the same request gave, held against what was emitted.

Knows nothing of who decodes, nor of why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gateway.execution import Execution


class Decoded(msgspec.Struct, frozen=True):
    """One answer of a run, token by token."""

    token_ids: tuple[int, ...]
    margins: tuple[float, ...] = ()
    """How far each token was ahead of its next best, noise included: nats."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All that one run gave."""

    answers: tuple[Decoded, ...]
    """In the order of their seeds."""
    texts: tuple[str, ...]
    """Of the choices, in order."""
    execution: Execution


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Whether two runs gave the same tokens."""

    equal: bool
    num_tokens: int
    """How many were compared: those before the first difference, and that one."""
    answer: int | None = None
    """The first answer that differs; None: none does."""
    position: int | None = None
    """Its first token that differs, or that only one of the two has."""
    margin: float | None = None
    """Nats: how far the token there was ahead in the standard run; None where it had ended, or where
    no other token was possible."""


def compare(emitted: Sequence[Sequence[int]], standard: Sequence[Decoded]) -> Comparison:
    """The first difference between what was emitted and a standard run of the same answers.

    Raises ValueError for two numbers of answers.
    """
    count = 0
    for answer, (ids, run) in enumerate(zip(emitted, standard, strict=True)):
        position = first_difference(ids, run.token_ids)
        if position is not None:
            return Comparison(
                equal=False,
                num_tokens=count + position + 1,
                answer=answer,
                position=position,
                margin=margin_at(run, position),
            )
        count += len(ids)
    return Comparison(equal=True, num_tokens=count)


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first position at which two sequences are not the same; None: they are."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def margin_at(run: Decoded, position: int) -> float | None:
    """The margin of one token; None where there is none to tell."""
    margin = run.margins[position] if position < len(run.margins) else math.inf
    return margin if math.isfinite(margin) else None
