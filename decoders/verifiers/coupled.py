"""The `coupled` verifier: the text depends on the seed alone."""

from __future__ import annotations

from torch import Tensor

from decoders.draft import Draft
from decoders.sampling import Noise
from decoders.verifiers.base import Verdict


class CoupledVerifier:
    """Emits the target's own choice at each position, while the draft agrees with it.

    The choice at a position depends on the target's law and the noise there and on nothing else, so
    the text is the one that standard decoding gives for the same seed; the draft only decides how
    many positions one forward evaluates (drafter-invariant decoding: Daliri, Musco and Suresh,
    arXiv 2408.07978). The draft's own law is not asked for.
    """

    name = "coupled"
    exact = True

    def verify(self, scores: Tensor, draft: Draft, noise: Noise, position: int) -> Verdict:
        """Accept draft tokens up to the first that is not the target's choice, which replaces it."""
        chosen = noise.choose(scores, position)
        num_accepted = 0
        while num_accepted < len(draft) and chosen[num_accepted] == draft.token_ids[num_accepted]:
            num_accepted += 1
        return Verdict(tuple(chosen[: num_accepted + 1]), num_accepted)
