"""A draft: tokens proposed as the continuation of one sequence, and the law they were drawn from.

The law is a type, because a wrong one bends what an exact verifier emits without a sign. Knows
nothing of sources, gates or verifiers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


class LawError(ValueError):
    """A draft does not have the law that it states, or has none. The message says what to do."""


@dataclass(frozen=True)
class OneHot:
    """The tokens are judged as given: probability 1 on each.

    Right for every proposal, however it was made and shortened, because a verifier that takes a
    token as given asks nothing about where it came from. Costs acceptance where tokens were drawn.
    """


@dataclass(frozen=True, eq=False)
class Dense:
    """Each token was drawn from its own row of ``draft_probs``, given the tokens before it.

    ``draft_probs`` is [number of tokens, vocab] with rows that sum to 1: the numbers that were really
    drawn from, after temperature, top-k or a mask, and in the precision of the draw (`Noise.law` of
    the very scores that `Noise.choose` was given). Nothing else may have been decided by looking at
    the tokens, not even in an earlier draft that was dropped for them. Raises LawError for what
    cannot be such a law.
    """

    draft_probs: Tensor

    def __post_init__(self) -> None:
        probs = self.draft_probs
        if probs.dim() != 2 or probs.dtype not in (torch.float32, torch.float64):
            raise LawError(
                f"draft_probs must be float32 or float64 [n, vocab], not {probs.dtype} "
                f"{list(probs.shape)}: fewer bits would not be the numbers that were drawn from"
            )
        if not len(probs):
            return
        total = probs.sum(dim=-1, dtype=torch.float64)
        if not bool(((total - 1).abs() < 1e-4).all() and (probs >= 0).all()):
            raise LawError(
                "a row of draft_probs is not a law: its mass is "
                f"{total[(total - 1).abs().argmax()].item():.6g}; renormalise it after masking"
            )


Law = OneHot | Dense


@dataclass(frozen=True)
class Draft:
    """Proposed tokens, which source proposed them, and the law to judge them by.

    Raises LawError where a token cannot have come from its row of a dense law.
    """

    token_ids: tuple[int, ...] = ()
    source: str = ""
    law: Law = OneHot()
    match_length: int = 0
    """Tokens of context that the source recognised, a function of the context alone; 0 where it
    does not say."""
    from_context: bool = False
    """Whether the tokens follow from those before alone, with nothing drawn for them. Says whether
    they may be held against what is emitted as a point mass; no verifier asks."""

    def __post_init__(self) -> None:
        if not isinstance(self.law, Dense):
            return
        count, vocab_size = self.law.draft_probs.shape
        if count != len(self.token_ids):
            raise LawError(f"{len(self.token_ids)} tokens cannot have {count} rows of draft_probs")
        known = [min(max(token_id, 0), vocab_size - 1) for token_id in self.token_ids]
        chances = self.law.draft_probs[range(count), known].tolist()
        for token_id, column, chance in zip(self.token_ids, known, chances, strict=True):
            if token_id != column or chance <= 0:
                raise LawError(f"token {token_id} has probability 0 under its stated law")

    def __len__(self) -> int:
        return len(self.token_ids)

    def first(self, count: int) -> Draft:
        """The first ``count`` tokens, where ``count`` follows from positions and lengths alone.

        The law stays as it is. A count that was found by looking at the tokens needs `select`.
        """
        if count >= len(self):
            return self
        law = Dense(self.law.draft_probs[:count]) if isinstance(self.law, Dense) else self.law
        return replace(self, token_ids=self.token_ids[:count], law=law)

    def select(self, count: int) -> Selection:
        """The first ``count`` tokens, where ``count`` was found by looking at the tokens."""
        return Selection(self.first(count))

    def within(self, vocab_size: int) -> Draft:
        """The draft over token ids 0..vocab_size - 1: cut before the first other token.

        A dense law is fitted to that many columns, without the mass that it gives to other ids.
        """
        count = next(
            (i for i, token_id in enumerate(self.token_ids) if not 0 <= token_id < vocab_size),
            len(self),
        )
        if not isinstance(self.law, Dense):
            return self.first(count)
        width = self.law.draft_probs.shape[1]
        if width < vocab_size:
            missing = (0, vocab_size - width)
            return replace(self, law=Dense(torch.nn.functional.pad(self.law.draft_probs, missing)))
        if width == vocab_size:
            return self
        inside = torch.arange(width, device=self.law.draft_probs.device) < vocab_size
        kept = self.select(count).restricted(inside)
        assert isinstance(kept.law, Dense)  # noqa: S101 - a restricted dense law is one
        return replace(kept, law=Dense(kept.law.draft_probs[:, :vocab_size]))


@dataclass(frozen=True)
class Selection:
    """What is left of a draft after somebody has looked at its tokens.

    No law holds for it, and no verifier takes it; `one_hot` or `restricted` makes it a draft again.
    """

    kept: Draft

    def one_hot(self) -> Draft:
        """Judged as given: exact whatever the reason of the selection."""
        return replace(self.kept, law=OneHot())

    def restricted(self, allowed: Tensor) -> Draft:
        """Judged by its law on ``allowed`` (bool [vocab] or [n, vocab]) alone, renormalised.

        Exact when the draft was cut before its first token outside ``allowed`` and for no other
        reason, and the set was known before the token was drawn. Raises LawError when a kept token
        is not in the set.
        """
        if not isinstance(self.kept.law, Dense):
            return self.kept
        probs = self.kept.law.draft_probs * allowed
        mass = probs.sum(dim=-1, keepdim=True)
        if not bool((mass > 0).all()):
            raise LawError("a kept token is not in the set that it was kept for")
        return replace(self.kept, law=Dense(probs / mass))


NO_DRAFT = Draft()
