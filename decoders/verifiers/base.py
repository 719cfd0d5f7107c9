"""The seam to verifiers, and the walk along a draft that most of them share. No model, no loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from decoders.draft import Dense, Draft, LawError
from decoders.sampling import Noise, Purpose


@dataclass(frozen=True)
class Verdict:
    """The tokens one step emits: the accepted draft tokens and one more."""

    token_ids: tuple[int, ...]
    num_accepted: int
    discrepancies: tuple[float, ...] = ()
    """For each token, TV(law it was drawn from, target's law); empty: 0 for all of them."""


class Verifier(Protocol):
    """Turns the target's law along a draft into emitted tokens."""

    @property
    def name(self) -> str:
        """As in configuration and records."""
        ...

    @property
    def exact(self) -> bool:
        """Whether the emitted tokens follow the target's law exactly."""
        ...

    def verify(self, scores: Tensor, draft: Draft, noise: Noise, position: int) -> Verdict:
        """Judge ``draft``, whose first token stands at output ``position``.

        ``scores`` is [len(draft) + 1, vocab]; ``noise.law`` of row i is the target's law, processors
        applied, after the first i draft tokens. A verifier that needs the draft's law raises
        LawError for a draft without one.
        """
        ...


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


def walk(scores: Tensor, draft: Draft, noise: Noise, position: int, judge: Judge) -> Verdict:
    """Ask ``judge`` token by token while the draft stands; the bonus token is the target's own.

    Draws for purpose BONUS, never CHOICE: a draft may have been drawn with that one.
    """
    token_ids: list[int] = []
    for i, token_id in enumerate(draft.token_ids):
        target_probs = noise.law(scores[i])
        draft_probs = _draft_probs(draft, i, target_probs)
        token = judge(DraftedToken(token_id, position + i, target_probs, draft_probs, noise))
        token_ids.append(token)
        if token != token_id:
            return Verdict(tuple(token_ids), i)
    count = len(draft)
    (bonus,) = noise.choose(scores[count : count + 1], position + count, Purpose.BONUS)
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
