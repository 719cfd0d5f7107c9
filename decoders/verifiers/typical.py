"""The `typical` verifier: lets a draft token stand where it is likely enough. Lossy."""

from __future__ import annotations

from torch import Tensor

from decoders.noise import Purpose
from decoders.verifiers.base import DraftedToken, draw
from decoders.verifiers.lossy import LossyVerifier


class TypicalAcceptance:
    """Accepts a token whose probability is above min(epsilon, delta · exp(-entropy)).

    Cai et al., "Medusa", arXiv 2401.10774. With target law p, draft law q and acceptance a(x) in
    {0, 1}, a token that is not accepted is replaced by a draw from p, so the emission law is

        q(x) · a(x) + (1 - Σ_y q(y) · a(y)) · p(x)

    For a draft judged as given, an accepted token costs 1 - p(x): what the target would have done
    instead.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        if not (0.0 < epsilon < 1.0 and 0.0 < delta < 1.0):
            raise ValueError("epsilon and delta must be in (0, 1)")
        self._epsilon = epsilon
        self._delta = delta

    def emission(self, drafted: DraftedToken) -> Tensor:
        """As in the class's formula."""
        target = drafted.target_probs
        accepted = drafted.draft_probs * (target > self._floor(target))
        return accepted + (1.0 - accepted.sum()) * target

    def emit(self, drafted: DraftedToken) -> int:
        """The draft token where it is typical, else the target's."""
        target = drafted.target_probs
        if target[drafted.token_id] > self._floor(target):
            return drafted.token_id
        return draw(target, drafted.noise, drafted.position, Purpose.RESIDUAL)

    def _floor(self, target: Tensor) -> Tensor:
        entropy = -target.xlogy(target).sum()
        return (self._delta * (-entropy).exp()).clamp(max=self._epsilon)


class TypicalVerifier(LossyVerifier):
    """Typical acceptance until ``max_distortion`` would be passed, then exact."""

    name = "typical"

    def __init__(self, max_distortion: float, *, epsilon: float = 0.09, delta: float = 0.3) -> None:
        super().__init__(TypicalAcceptance(epsilon, delta), max_distortion)
