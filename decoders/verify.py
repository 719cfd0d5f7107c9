"""Verifiers: which draft tokens stand, and which token follows them. No model, no loop, no state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from decoders.draft import Draft
from decoders.sampling import Noise


@dataclass(frozen=True)
class Verdict:
    """The tokens one step emits: the accepted draft tokens and one more."""

    token_ids: tuple[int, ...]
    num_accepted: int


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

        ``scores`` is [len(draft) + 1, vocab]; softmax of row i is the target's law, processors
        applied, after the first i draft tokens.
        """
        ...


class CoupledVerifier:
    """Emits the target's own choice at each position, while the draft agrees with it.

    The choice at a position depends on the target's law and the noise there and on nothing else, so
    the text is the one that standard decoding gives for the same seed; the draft only decides how
    many positions one forward evaluates (drafter-invariant decoding: Daliri, Musco and Suresh,
    arXiv 2408.07978).
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
