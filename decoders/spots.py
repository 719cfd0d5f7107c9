"""The tokens of a step that are measured, and what the drafts that stood there say of them.

Which drafts may be held against a token, and by which law, is said in `decoders.meter`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.draft import Dense, Draft
from decoders.evidence import ACCEPTANCE, LEAKS
from decoders.noise import NO_TOKEN
from decoders.verifiers.base import Verdict

BLIND = 1e-5
"""A token that a draft would propose once in a hundred thousand: for it, next to never."""


@dataclass(frozen=True)
class Spot:
    """One token that a step would emit, and the draft token that stood there, if any."""

    token_id: int
    row: int
    """Of the step's scores."""
    draft_id: int = NO_TOKEN
    """Where the draft is known to follow from the context."""
    draft_probs: Tensor | None = None
    """[vocab], where the draft's law is known and no point mass."""
    accepted: float = math.nan
    """1 or 0; no number where nothing is known of how often it should be."""


def spots_of(draft: Draft, verdict: Verdict, first: int, *, judged: bool) -> list[Spot]:
    """One for each token of the verdict; ``judged``: whether the draft's noise is not the verifier's."""
    spots = []
    dense = draft.law.draft_probs if isinstance(draft.law, Dense) else None
    for i, token_id in enumerate(verdict.token_ids):
        accepted = float(i < verdict.num_accepted)
        if i >= len(draft) or (dense is None and not draft.from_context):
            spots.append(Spot(token_id, first + i))
        elif dense is None:
            spots.append(Spot(token_id, first + i, draft.token_ids[i], accepted=accepted))
        else:
            known = accepted if judged else math.nan
            spots.append(Spot(token_id, first + i, draft_probs=dense[i], accepted=known))
    return spots


@dataclass(frozen=True)
class DraftLaws:
    """What the drafts of n tokens say, where anything is known: a point or a law for each.

    Columns [n]; ``log_q`` is of the emitted token.
    """

    point: Tensor
    """Bool: whether the law is a point mass, on ``draft_ids``."""
    draft_ids: Tensor
    known: Tensor
    """Bool: whether there is any law."""
    accepted: Tensor
    """1, 0, or no number."""
    overlap: Tensor
    """Σ min(target, draft)."""
    blind: Tensor
    """The target's mass where the draft has next to none."""
    dense_q: Tensor
    """The draft's probability of the emitted token, where the law is no point mass."""

    @classmethod
    def of(cls, spots: Sequence[Spot], probs: Tensor) -> DraftLaws:
        """``probs`` [n, vocab] is the target's."""
        facts = [
            (
                float(spot.draft_id != NO_TOKEN),
                float(max(spot.draft_id, 0)),
                float(spot.draft_id != NO_TOKEN or spot.draft_probs is not None),
                spot.accepted,
            )
            for spot in spots
        ]
        host = torch.tensor(facts, dtype=torch.float64)
        point, draft_ids, known, accepted = host.to(probs.device, non_blocking=True).unbind(-1)
        ids = draft_ids.long()
        p_draft = probs.gather(-1, ids.unsqueeze(-1))[:, 0].double()
        overlap, blind, dense_q = p_draft, 1.0 - p_draft, torch.zeros_like(p_draft)
        dense = [i for i, spot in enumerate(spots) if spot.draft_probs is not None]
        if dense:
            at = torch.tensor(dense).to(probs.device, non_blocking=True)
            p = probs[at]
            q = torch.stack([s.draft_probs for s in spots if s.draft_probs is not None]).to(p)
            q = q / q.sum(dim=-1, keepdim=True)
            token_ids = column([spots[i].token_id for i in dense], p)
            overlap = overlap.index_copy(0, at, torch.minimum(p, q).sum(-1).double())
            blind = blind.index_copy(0, at, p.where(q <= BLIND, 0.0).sum(-1).double())
            dense_q = dense_q.index_copy(0, at, q.gather(-1, token_ids)[:, 0].double())
        return cls(point > 0, ids, known > 0, accepted, overlap, blind, dense_q)

    def _q(self, token_ids: Tensor) -> Tensor:
        return (token_ids == self.draft_ids).double().where(self.point, self.dense_q)

    def leaks(self, token_ids: Tensor, log_p: Tensor) -> Tensor:
        """[n, λ]: log((1 - λ) + λ · draft / target), λ of `LEAKS`; 0 where no law is known."""
        share = _row(LEAKS, log_p)
        log_ratio = (self._q(token_ids).log() - log_p).unsqueeze(-1)
        both = torch.logaddexp(torch.log1p(-share), log_ratio + share.log())
        return both.where(self.known.unsqueeze(-1), 0.0)

    def acceptance(self) -> tuple[Tensor, Tensor, Tensor]:
        """Accepted or not, against the overlap of the laws, where that is the chance of it."""
        return hits(self.accepted, self.overlap, where=~self.accepted.isnan())

    def stakes(self) -> Tensor:
        """[n, stakes]: log(1 + stake · (accepted - overlap)), stakes of `ACCEPTANCE`.

        0 where acceptance says nothing.
        """
        excess = (self.accepted - self.overlap.clamp(0.0, 1.0)).unsqueeze(-1)
        return torch.log1p(_row(ACCEPTANCE.values(), excess) * excess).nan_to_num(0.0)

    def blindness(self, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether the draft gives next to nothing to the token, against the target's mass of such."""
        return hits(self._q(token_ids) <= BLIND, self.blind, where=self.known)


def hits(
    observed: Tensor, chance: Tensor, where: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Observed, expected and variance of events [n] of these chances; 0 but ``where`` they count."""
    expected = chance.clamp(0.0, 1.0)
    found = observed.double(), expected, expected * (1.0 - expected)
    if where is None:
        return found
    seen, awaited, variance = (column.where(where, 0.0) for column in found)
    return seen, awaited, variance


def _row(values: Iterable[float], like: Tensor) -> Tensor:
    """Float64 [values], where ``like`` is."""
    return torch.tensor([*values], dtype=torch.float64).to(like.device, non_blocking=True)


def column(token_ids: Sequence[int], like: Tensor) -> Tensor:
    """Int64 [n, 1], where ``like`` is."""
    return torch.tensor(token_ids).to(like.device, non_blocking=True).unsqueeze(-1)
