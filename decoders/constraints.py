"""The seam to constrained output: which tokens an answer may go on with, at every draft position.

A constraint is part of the target's law and no part of a draft: what it forbids has probability 0,
and the rest is renormalised. Knows nothing of models, drafts or verifiers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor


class ConstraintError(ValueError):
    """A token was emitted that the constraint forbids, or no token can follow."""


class GrammarError(ValueError):
    """A grammar that is wrong or too large. The message says what, and reads on after its name."""


class UnsupportedGrammar(GrammarError):
    """A grammar that means something which cannot be enforced exactly."""


class Constraint(Protocol):
    """What one answer may say. It stands after the tokens that it was told to accept."""

    def allowed(self, draft_ids: Sequence[int]) -> Tensor | None:
        """Which tokens may follow, bool [len(draft_ids) + 1, vocab] on the CPU; None: any.

        Row i holds after the first i draft tokens. Rows after a draft token that is not allowed, or
        that ends the answer, are never drawn from and hold anything but nothing. Leaves no trace.
        """
        ...

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of ``token_ids``, from the first on, may follow one another. Leaves no trace."""
        ...

    def accept(self, token_ids: Sequence[int]) -> None:
        """Go on past tokens that were emitted. Raises ConstraintError for one that is not allowed."""
        ...


class MinTokens:
    """No end before a number of tokens."""

    def __init__(self, min_tokens: int, end_ids: Collection[int], vocab_size: int) -> None:
        """``end_ids`` are the tokens that end an answer."""
        self._end_ids = sorted(token_id for token_id in end_ids if token_id < vocab_size)
        self._vocab_size = vocab_size
        self._missing = min_tokens

    def allowed(self, draft_ids: Sequence[int]) -> Tensor | None:
        """Everything, and the ends in the rows that have enough tokens before them."""
        if self._missing <= 0:
            return None
        rows = torch.ones(len(draft_ids) + 1, self._vocab_size, dtype=torch.bool)
        rows[: self._missing, self._end_ids] = False
        return rows

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        """Those before the first end that comes too early."""
        early = token_ids[: max(self._missing, 0)]
        return next((i for i, t in enumerate(early) if t in self._end_ids), len(token_ids))

    def accept(self, token_ids: Sequence[int]) -> None:
        """Count them."""
        if self.count_allowed(token_ids) < len(token_ids):
            raise ConstraintError("the answer ends before it has min_tokens")
        self._missing -= len(token_ids)
