"""What one row would bring to the next step, for the cost model to weigh."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoders.acceptance import DraftKind, History
from decoders.price import Price

HORIZON = 64
"""Tokens within which what a draft model has to read must be won back."""


@dataclass(frozen=True)
class Offer:
    """One row's part of the next step, before its draft is cut or drawn."""

    num_tokens: int = 1
    """Tokens that must be computed whatever becomes of the draft."""
    decodes: bool = True
    """Whether the row emits in this step."""
    num_cached: int = 0
    """Tokens that it attends to besides its own."""
    num_draft_tokens: int = 0
    """Proposed already, or, where they have a price, as many as the row might have."""
    kind: DraftKind = DraftKind("")
    samples: bool = False
    """Whether its tokens are chosen with noise, which takes time too."""
    history: History = field(default_factory=History)
    price: Price | None = None
    """Of a draft that is not drawn yet; None where it is there and has cost nothing."""
    num_remaining: int = HORIZON
    """Tokens that the row may still emit."""

    @property
    def num_unread(self) -> int:
        """Tokens of the row that a draft model must read before it draws; 0 where none draws."""
        return 0 if self.price is None else self.price.num_behind
