"""A draft: tokens proposed as the continuation of one sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Draft:
    """Proposed tokens, and which source proposed them.

    The draft is deterministic given the sequence and its noise: as a law it is one-hot, which is
    what lets gates and limits shorten it without a bias.
    """

    token_ids: tuple[int, ...] = ()
    source: str = ""
    match_length: int = 0
    """Tokens of context that the source recognised, a function of the context alone; 0 if it does
    not say."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def first(self, count: int) -> Draft:
        """The draft's first ``count`` tokens."""
        return replace(self, token_ids=self.token_ids[:count])


NO_DRAFT = Draft()
