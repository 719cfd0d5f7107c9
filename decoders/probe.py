"""The seam to a probe: what it looks at of a prompt's hidden states, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class PrefillProbe(Protocol):
    """Reads a prompt from the hidden states that its prefill computes anyway.

    What it makes of a token is kept beside the token's keys and values. So a prompt that begins like
    an earlier one is read whole, however little of it had to be computed.
    """

    @property
    def layers(self) -> Sequence[int]:
        """The layers after which it looks, counted from 1, in ascending order; not a model's last."""
        ...

    def project(self, hidden: Sequence[Tensor]) -> Tensor:
        """[n, width] from n tokens' hidden states after each of `layers`, each [n, hidden_size].

        Each row is made of its own token alone: which tokens are computed together is chance.
        """
        ...

    def read(self, projections: Tensor, token_ids: Sequence[int]) -> Sequence[float]:
        """What a whole prompt says, from the projections [n, width] of its ``token_ids`` [n]."""
        ...
