"""The `rejection` verifier: speculative sampling, exact for one-hot and dense drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from decoders.noise import Purpose
from decoders.verifiers.base import (
    DraftedRow,
    DraftedToken,
    Verdict,
    draw,
    require_law,
    split,
    walk,
)


@dataclass(frozen=True)
class RejectionVerifier:
    """Accepts a draft token with min(1, target/draft), else draws from the residual distribution.

    Leviathan, Kalman and Matias, arXiv 2211.17192; Chen et al., arXiv 2302.01318. With a dense law
    it accepts as often as any exact verifier can: with probability 1 - TV(target, draft). A token
    judged as given is accepted with its probability under the target. The tokens follow the
    target's law but, unlike those of `coupled`, depend on what was proposed and not on the seed alone.
    """

    name: ClassVar[str] = "rejection"
    exact: ClassVar[bool] = True

    def verify(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        """Judge token by token; the first that does not stand is replaced."""
        for row in rows:
            require_law(row.draft)
        parts = split(scores, rows)
        return [walk(part, row, exact_token) for part, row in zip(parts, rows, strict=True)]


def exact_token(drafted: DraftedToken) -> int:
    """The draft token, or one from the residual distribution; together they have the target's law."""
    target, proposed = drafted.target_probs[drafted.token_id], drafted.draft_probs[drafted.token_id]
    if drafted.noise.accept(min(1.0, (target / proposed).item()), drafted.position):
        return drafted.token_id
    residual = residual_distribution(drafted.target_probs, drafted.draft_probs)
    return draw(residual, drafted.noise, drafted.position, Purpose.RESIDUAL)


def residual_distribution(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Where the target has more mass than the draft, float64 [vocab], renormalised."""
    residual = (target_probs - draft_probs).clamp(min=0.0)
    total = residual.sum()
    # Nothing left means that the laws agree to the last bit, and the rejection was rounding.
    return residual / total if total > 0 else target_probs
