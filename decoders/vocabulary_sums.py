"""Sums over the vocabulary of what the target's law says of each token, in one pass over the scores.

A step has few rows and a vocabulary of many thousand tokens, so that each operation on all of them is
time: the powers of the law that its alternatives need are products of one exponential.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Below the likeliest token by more than this, a token has no mass in any precision.
_LOWEST = -300.0
_ROUNDING = 128
"""Of the last bits of a sum over the vocabulary, how far off it may be."""


@dataclass(frozen=True)
class VocabularySums:
    """Of n laws softmax(scores). All but ``probs`` are float64 [n]; z is score - best score."""

    probs: Tensor
    """[n, vocab], in the precision of the scores."""
    log_total: Tensor
    """log Σ e^z."""
    log_powers: dict[float, Tensor]
    """Power k -> log Σ e^(k·z)."""
    entropy: Tensor
    """Nats."""
    entropy_variance: Tensor
    """Of -log p under p."""


def vocabulary_sums(scores: Tensor, top: Tensor) -> VocabularySums:
    """Of ``scores`` [n, vocab] with the best scores ``top`` [n, 1]; ``-inf`` is probability 0."""
    z = (scores - top).clamp_(min=_LOWEST)  # so that 0 · z is 0 where the probability is
    fourth = (z * 0.25).exp_()
    half = fourth * fourth
    mass = half * half
    total = mass.sum(dim=-1, keepdim=True)
    powers = {
        0.5: half.sum(dim=-1),
        0.75: _dot(half, fourth),
        1.25: _dot(mass, fourth),
        2.0: _dot(mass, mass),
    }
    probs = mass.div_(total)
    weighted = torch.mul(probs, z, out=half)
    mean, square = weighted.sum(dim=-1).double(), _dot(weighted, z).double()
    log_total = total[:, 0].double().log()
    return VocabularySums(
        probs=probs,
        log_total=log_total,
        log_powers={power: value.double().log() for power, value in powers.items()},
        entropy=log_total - mean,
        entropy_variance=(square - mean * mean).clamp(min=0.0),
    )


def head_mass(probs: Tensor, floor: float) -> Tensor:
    """Mass [n] of the tokens of ``probs`` [n, vocab] whose probability is above ``floor``."""
    return torch.threshold(probs, floor, 0.0).sum(dim=-1).double()


def rounding(dtype: torch.dtype) -> float:
    """How far, relatively, a sum of `VocabularySums` may be off."""
    return _ROUNDING * torch.finfo(dtype).eps


def _dot(left: Tensor, right: Tensor) -> Tensor:
    products: Tensor = torch.linalg.vecdot(left, right)
    return products
