"""The meter: holds every token of a step against the target's law, and against the draft's.

It changes nothing that is emitted. All numbers of a step come from a few tensor operations and stay
on the device: rows add theirs up there, and each is read once, at its end.

What makes a factor valid is the past that it is conditioned on. Here that is the tokens emitted
before, with what became of their drafts, and for a draft that follows from them the draft: its tokens
are then known before this one is drawn. A drawn draft is not part of it, only its law: under `coupled`
it was drawn with the very noise that chooses the token, so held against its tokens any sound decoder
would look as if it copied them. Where neither is known, the factors of a leak are 1. Row by row the
noise must be fresh: an answer to a seed that was used before is no second answer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from decoders.evidence import FLATTER, NUM_COLUMNS, SHARPER
from decoders.noise import NO_TOKEN, Greedy, GumbelNoise
from decoders.spots import DraftLaws, Spot, column, hits, spots_of
from decoders.verifiers.base import DraftedRow, Verdict, Verifier, split, wants_law
from decoders.vocabulary_sums import VocabularySums, head_mass, rounding, vocabulary_sums

_log = logging.getLogger(__name__)

TAIL = 1e-3
"""A token this improbable or more is of the tail: at temperature 1 there are a few in a hundred, so
that a missing tail shows within some hundred tokens; each is still too rare to count by itself."""
_TAIL_SHARE = 0.5
"""How much of its capital the bet on a lost tail risks: all of it would be gone with one token."""

_POWERS = (*SHARPER.values(), *FLATTER.values())

NOTHING = torch.empty(0, 0)
"""Of a row that was not measured."""


class Meter(Protocol):
    """Measures the tokens of one step."""

    def measure(
        self,
        verifier: Verifier,
        scores: Tensor,
        rows: Sequence[DraftedRow],
        verdicts: Sequence[Verdict],
    ) -> list[Tensor]:
        """For each row float64 [its verdict's tokens, NUM_COLUMNS], or `NOTHING`.

        ``scores`` [sum of num_positions, vocab] is what ``verifier`` has judged. Never raises.
        """
        ...


class NoMeter:
    """Measures nothing."""

    def measure(
        self,
        verifier: Verifier,
        scores: Tensor,
        rows: Sequence[DraftedRow],
        verdicts: Sequence[Verdict],
    ) -> list[Tensor]:
        """`NOTHING`, for each row."""
        return [NOTHING] * len(rows)


class LawMeter:
    """Measures all columns of `decoders.evidence`.

    ``hedge_ids`` are the tokens that are a hedge. Rows without noise are held against the likeliest
    token alone; all that is a sum of differences is 0 for them.
    """

    def __init__(self, hedge_ids: Sequence[int] = ()) -> None:
        self._hedge_ids = torch.tensor(sorted(hedge_ids), dtype=torch.int64)

    def measure(
        self,
        verifier: Verifier,
        scores: Tensor,
        rows: Sequence[DraftedRow],
        verdicts: Sequence[Verdict],
    ) -> list[Tensor]:
        """See `Meter`. What fails here is logged and not measured: no answer needs it."""
        try:
            return self._measure(verifier, scores, rows, verdicts)
        except Exception:  # noqa: BLE001 - logged: the rows have their tokens all the same
            _log.exception("the tokens of %d rows could not be measured", len(rows))
            return [NOTHING] * len(rows)

    def _measure(
        self,
        verifier: Verifier,
        scores: Tensor,
        rows: Sequence[DraftedRow],
        verdicts: Sequence[Verdict],
    ) -> list[Tensor]:
        judged = wants_law(verifier)
        spots: dict[int, list[Spot]] = {}
        first = 0
        for i, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
            if NO_TOKEN not in verdict.token_ids:
                spots[i] = spots_of(row.draft, verdict, first, judged=judged)
            first += row.num_positions
        results = [NOTHING] * len(rows)
        greedy = [i for i in spots if isinstance(rows[i].noise, Greedy)]
        for members, measured in (
            (greedy, self._certain),
            ([i for i in spots if i not in greedy], self._drawn),
        ):
            if not members:
                continue
            mine = [spot for i in members for spot in spots[i]]
            columns = measured(_laws(scores, rows, [spot.row for spot in mine]), mine)
            parts = columns.split_with_sizes([len(spots[i]) for i in members])
            for i, part in zip(members, parts, strict=True):
                results[i] = part
        return results

    def _certain(self, scores: Tensor, spots: Sequence[Spot]) -> Tensor:
        """Of rows whose law is all on the best score: whether each token has it."""
        token_ids = column([spot.token_id for spot in spots], scores)
        columns = scores.new_zeros(len(spots), NUM_COLUMNS, dtype=torch.float64)
        columns[:, 0] = 1.0
        columns[:, 1] = (scores.gather(-1, token_ids) < scores.amax(dim=-1, keepdim=True))[:, 0]
        return columns

    def _drawn(self, scores: Tensor, spots: Sequence[Spot]) -> Tensor:
        top = scores.amax(dim=-1, keepdim=True)
        sums = vocabulary_sums(scores, top)
        token_ids = column([spot.token_id for spot in spots], scores)
        z = (scores.gather(-1, token_ids) - top)[:, 0].double()
        possible = z > -torch.inf
        # Of an impossible token only that is counted: a bet on it would win or lose everything.
        z = z.where(possible, 0.0)
        log_p = z - sums.log_total
        draft = DraftLaws.of(spots, sums.probs)
        head = head_mass(sums.probs, TAIL)
        in_tail = sums.probs.gather(-1, token_ids)[:, 0] <= TAIL
        # Few operations on all columns at once: a step waits for each of them.
        factors = torch.cat(
            [
                draft.leaks(token_ids[:, 0], log_p),
                _tempered(z, sums),
                _tail_loss(in_tail, head).unsqueeze(-1),
                draft.stakes(),
            ],
            dim=-1,
        )
        factors = factors.where(factors == 0.0, factors - rounding(scores.dtype))
        surprisal = torch.stack((-log_p, sums.entropy, sums.entropy_variance), dim=-1)
        hedges = self._hedge_ids.to(scores.device)
        counted = (
            *draft.acceptance(),
            *hits(in_tail, 1.0 - head),
            *draft.blindness(token_ids[:, 0]),
            *hits(torch.isin(token_ids[:, 0], hedges), sums.probs[:, hedges].sum(-1).double()),
        )
        accepted, others = torch.stack(counted, dim=-1).tensor_split([3], dim=-1)
        real = possible.unsqueeze(-1)
        return torch.cat(
            [
                torch.stack((torch.ones_like(z), (~possible).double()), dim=-1),
                factors.where(real, 0.0),
                accepted,
                surprisal.where(real, 0.0),
                others,
            ],
            dim=-1,
        )


def _tempered(z: Tensor, sums: VocabularySums) -> Tensor:
    """[n, powers]: log of (target^k / its sum) / target, for each power k."""
    powers = torch.tensor(_POWERS, dtype=torch.float64).to(z.device, non_blocking=True)
    log_powers = torch.stack([sums.log_powers[power] for power in _POWERS], dim=-1)
    return (powers - 1.0) * z.unsqueeze(-1) - log_powers + sums.log_total.unsqueeze(-1)


def _tail_loss(in_tail: Tensor, head: Tensor) -> Tensor:
    """log of (1 - share) + share · 1[not of the tail] / head; 0 where all is tail."""
    gain = torch.log1p(_TAIL_SHARE * (1.0 / head.clamp(min=1e-300) - 1.0))
    return gain.where(~in_tail, math.log1p(-_TAIL_SHARE)).where(head > 0, 0.0)


def _laws(scores: Tensor, rows: Sequence[DraftedRow], at: Sequence[int]) -> Tensor:
    """Scores of which softmax is the law, or all of whose mass is on the best: rows ``at``."""
    if not all(isinstance(row.noise, Greedy | GumbelNoise) for row in rows):
        parts = split(scores, rows)
        scores = torch.cat(
            [
                part
                if isinstance(row.noise, Greedy | GumbelNoise)
                else row.noise.law(part).log().to(scores.dtype)
                for part, row in zip(parts, rows, strict=True)
            ]
        )
    if len(at) == len(scores):
        return scores
    return scores[torch.tensor(at).to(scores.device, non_blocking=True)]
