"""The `conservative` verifier: of several candidates the safest one. Lossy, its name notwithstanding."""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.noise import Purpose
from decoders.verifiers.base import DraftedToken, draw
from decoders.verifiers.lossy import LossyVerifier


class BestCandidate:
    """Emits the candidate that the target finds most likely, where it reaches a threshold.

    The candidates are the draft token and k - 1 further draws from its law q; each is scored by its
    probability under the target p, and the first of equals is taken. The first ``warm_up`` tokens of
    an answer are decoded exactly. With Q(p ≤ c) the draft's mass of tokens that score at most c, the
    best candidate has the law

        best(x) = q(x) · (Q(p ≤ p(x))^k - Q(p < p(x))^k) / Q(p = p(x))

    (all k score at most p(x) and not all score less; among equals the first drawn follows q), and
    the emission law is best(x) where p(x) reaches the threshold, plus p(x) times the mass of best
    where it does not. Picking the best of k seeks the mode: with p = q = (.5, .3, .2) and k = 5 the
    last token comes out with probability .2^5, once in 3,000 tokens instead of once in 5.
    """

    def __init__(self, candidates: int, threshold: float, warm_up: int) -> None:
        if candidates < 1 or warm_up < 0 or not 0.0 < threshold <= 1.0:
            raise ValueError(
                "candidates must be at least 1, warm_up at least 0 and threshold in (0, 1]"
            )
        self._candidates = candidates
        self._threshold = threshold
        self._warm_up = warm_up

    def emission(self, drafted: DraftedToken) -> Tensor | None:
        """As in the class's formula; None during the warm-up."""
        if drafted.position < self._warm_up:
            return None
        score = drafted.target_probs
        levels, level = torch.unique(score, return_inverse=True)
        mass = torch.zeros_like(levels).index_add_(0, level, drafted.draft_probs)
        up_to = mass.cumsum(0)
        below = torch.cat([up_to.new_zeros(1), up_to[:-1]])
        share = (up_to**self._candidates - below**self._candidates) / mass.clamp(min=1e-300)
        kept = drafted.draft_probs * share[level] * (score >= self._threshold)
        return kept + (1.0 - kept.sum()) * drafted.target_probs

    def emit(self, drafted: DraftedToken) -> int:
        """The best candidate, or the target's own draw where even that one is too unlikely."""
        score = drafted.target_probs
        best = max(self._drawn(drafted), key=lambda token_id: score[token_id].item())
        if score[best] >= self._threshold:
            return best
        return draw(drafted.target_probs, drafted.noise, drafted.position, Purpose.RESIDUAL)

    def _drawn(self, drafted: DraftedToken) -> list[int]:
        """The draft token and its further candidates, in the order of drawing."""
        if drafted.draft_probs[drafted.token_id] == 1.0:
            return [drafted.token_id]
        return [drafted.token_id] + [
            draw(drafted.draft_probs, drafted.noise, drafted.position, Purpose.CANDIDATE + j)
            for j in range(self._candidates - 1)
        ]


class ConservativeVerifier(LossyVerifier):
    """The best of several candidates until ``max_distortion`` would be passed, then exact."""

    name = "conservative"

    def __init__(
        self,
        max_distortion: float,
        *,
        candidates: int = 5,
        threshold: float = 0.1,
        warm_up: int = 5,
    ) -> None:
        super().__init__(BestCandidate(candidates, threshold, warm_up), max_distortion)
