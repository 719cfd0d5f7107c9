"""The `coupled` verifier: the text depends on the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from decoders.noise import Draw, choose
from decoders.verifiers.base import DraftedRow, Verdict


@dataclass(frozen=True)
class CoupledVerifier:
    """Emits the target's own choice at each position, while the draft agrees with it.

    The choice at a position depends on the target's law and the noise there and on nothing else, so
    the text is the one that standard decoding gives for the same seed; the draft only decides how
    many positions one forward evaluates (drafter-invariant decoding: Daliri, Musco and Suresh,
    arXiv 2408.07978). The draft's own law is not asked for.
    """

    name: ClassVar[str] = "coupled"
    exact: ClassVar[bool] = True
    wants_law: ClassVar[bool] = False

    def verify(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        """Accept draft tokens up to the first that is not the target's choice, which replaces it."""
        draws = [Draw(row.noise, row.position, row.num_positions) for row in rows]
        return [
            _agreement(row.draft.token_ids, chosen)
            for row, chosen in zip(rows, choose(scores, draws), strict=True)
        ]


def _agreement(draft_ids: Sequence[int], chosen: Sequence[int]) -> Verdict:
    num_accepted = 0
    while num_accepted < len(draft_ids) and chosen[num_accepted] == draft_ids[num_accepted]:
        num_accepted += 1
    return Verdict(tuple(chosen[: num_accepted + 1]), num_accepted)
