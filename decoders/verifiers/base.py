"""The seam to verifiers, and the walk along a draft that most of them share. No model, no loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from decoders.draft import Dense, Draft, LawError
from decoders.noise import NO_TOKEN, Noise, Purpose


@dataclass(frozen=True)
class Verdict:
    """The tokens one step emits: the accepted draft tokens and one more.

    The last is NO_TOKEN where the target's law is none, which fails the row.
    """

    token_ids: tuple[int, ...]
    num_accepted: int
    discrepancies: tuple[float, ...] = ()
    """For each token, TV(law it was drawn from, target's law); empty: 0 for all of them."""


@dataclass(frozen=True)
class DraftedRow:
    """One row of a step: its draft, whose first token stands at output ``position``, and its noise."""

    draft: Draft
    noise: Noise
    position: int

    @property
    def num_positions(self) -> int:
        """Rows of scores that it has: one for each draft token and one for the token after them."""
        return len(self.draft) + 1


class Verifier(Protocol):
    """Turns the target's law along drafts into emitted tokens.

    Rows whose verifiers are equal (``==``) are verified together; one that keeps something of a row
    must be equal to no other, as objects are by themselves.
    """

    @property
    def name(self) -> str:
        """As in configuration and records."""
        ...

    @property
    def exact(self) -> bool:
        """Whether the emitted tokens follow the target's law exactly."""
        ...

    def verify(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        """One verdict for each row, which must not depend on the others.

        ``scores`` is [sum of num_positions, vocab], row after row (`split` gives each its own);
        ``noise.law`` of the i-th of a row is the target's law, processors applied, after its first i
        draft tokens. A verifier that needs the draft's law raises LawError for a draft without one.
        Whoever raises, for whichever row, is asked again row by row.
        """
        ...


@runtime_checkable
class LawOptional(Protocol):
    """What a verifier may say besides; one that does not is given the law of every draft."""

    @property
    def wants_law(self) -> bool:
        """Whether it judges a draft by the law that it was drawn from, not by its tokens alone."""
        ...


def wants_law(verifier: Verifier) -> bool:
    """Whether the drafts of this verifier's rows have to state the law they were drawn from."""
    return not isinstance(verifier, LawOptional) or verifier.wants_law


def split(scores: Tensor, rows: Sequence[DraftedRow]) -> tuple[Tensor, ...]:
    """The scores of each row, [num_positions, vocab]."""
    return scores.split_with_sizes([row.num_positions for row in rows])


@dataclass(frozen=True)
class DraftedToken:
    """One draft token before the judge. Laws are float64 [vocab] and sum to 1."""

    token_id: int
    position: int
    """Its output position."""
    target_probs: Tensor
    draft_probs: Tensor
    """The law it was drawn from; a point mass where it is judged as given."""
    noise: Noise


Judge = Callable[[DraftedToken], int]
"""Says which token stands at the position of a draft token, given that all before it stood."""


def walk(scores: Tensor, row: DraftedRow, judge: Judge) -> Verdict:
    """Ask ``judge`` token by token while the draft stands; the bonus token is the target's own.

    ``scores`` are the row's. Draws for purpose BONUS, never CHOICE: a draft may have been drawn with
    that one.
    """
    draft, noise = row.draft, row.noise
    token_ids: list[int] = []
    meaningless = scores.isnan().any(dim=-1).tolist()
    for i, token_id in enumerate(draft.token_ids):
        if meaningless[i]:
            return Verdict((*token_ids, NO_TOKEN), i)
        target_probs = noise.law(scores[i])
        draft_probs = _draft_probs(draft, i, target_probs)
        token = judge(DraftedToken(token_id, row.position + i, target_probs, draft_probs, noise))
        token_ids.append(token)
        if token != token_id:
            return Verdict(tuple(token_ids), i)
    count = len(draft)
    (bonus,) = noise.choose(scores[count:], row.position + count, Purpose.BONUS)
    return Verdict((*token_ids, bonus), count)


def draw(probs: Tensor, noise: Noise, position: int, purpose: int) -> int:
    """One token id with law ``probs`` [vocab]."""
    (token_id,) = noise.choose(probs.log().unsqueeze(0), position, purpose)
    return token_id


def require_law(draft: Draft) -> None:
    """Raise LawError for what only looks like a draft because nobody checked types."""
    if not isinstance(draft, Draft):
        raise LawError(
            "a draft that was shortened by looking at its tokens has no law; "
            "make it one again with `one_hot()` or `restricted(allowed)`"
        )


def _draft_probs(draft: Draft, index: int, like: Tensor) -> Tensor:
    if isinstance(draft.law, Dense):
        probs = draft.law.draft_probs[index].to(like)
        if probs.shape != like.shape:
            raise LawError(
                f"draft_probs has {probs.shape[0]} columns for a vocabulary of {like.shape[0]}; "
                "fit it with `Draft.within`"
            )
        return probs / probs.sum()
    probs = torch.zeros_like(like)
    probs[draft.token_ids[index]] = 1.0
    return probs
