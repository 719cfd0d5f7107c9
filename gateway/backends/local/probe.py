"""The domain probe of one model: found, held against the model, and put to the engine as its probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from decoders.loader import LoadedModel
from gateway import probe as probes
from gateway.probe import ProbeWeights
from gateway.types import DOMAINS

SHIPPED = Path(__file__).parent / "probes"
_EPSILON = 1e-6
"""Added to a mean square, so that a state of zeros has a direction too."""


class DomainProbe:
    """A `PrefillProbe` that reads a probability for each domain."""

    def __init__(self, weights: ProbeWeights, content_hash: str) -> None:
        self.content_hash = content_hash
        self.layers = weights.layers
        self._weights = weights
        self._projection = torch.from_numpy(weights.projection)

    def project(self, hidden: Sequence[Tensor]) -> Tensor:
        """Scores of each token, [n, domains]."""
        if self._projection.device != hidden[0].device:
            self._projection = self._projection.to(hidden[0].device)
        scores = [
            normalised(state) @ matrix
            for state, matrix in zip(hidden, self._projection, strict=True)
        ]
        return torch.stack(scores).sum(dim=0)

    def read(self, projections: Tensor, token_ids: Sequence[int]) -> list[float]:
        """The probabilities, in the order of `DOMAINS`."""
        start = prefix_length(self._weights.prefix, token_ids)
        pooled = self._weights.pooled(projections[start:].cpu().numpy())
        probabilities: list[float] = self._weights.probabilities(*pooled).tolist()
        return probabilities

    @staticmethod
    def named(reading: Sequence[float]) -> Mapping[str, float]:
        """A reading by domain."""
        return dict(zip(DOMAINS, reading, strict=True))


def normalised(state: Tensor) -> Tensor:
    """Float32 hidden states [n, hidden_size], each divided by its root mean square.

    Some tokens have states a hundred times longer than others, and would be all of a mean.
    """
    state = state.float()
    return state * torch.rsqrt(state.square().mean(dim=-1, keepdim=True) + _EPSILON)


def prefix_length(prefix: Sequence[int], token_ids: Sequence[int]) -> int:
    """How many tokens of a prompt are the ``prefix`` that tells nothing; never all of them."""
    length = len(prefix)
    begins = length < len(token_ids) and tuple(token_ids[:length]) == tuple(prefix)
    return length if begins else 0


def find_probe(option: str | bool, loaded: LoadedModel) -> DomainProbe | None:
    """What the option ``probe`` says: a file, ``auto`` for one that ships, or ``off``.

    YAML reads a bare ``off`` as False. Raises ConfigError for a file that does not fit the model.
    """
    if option in ("off", False):
        return None
    if option in ("auto", True):
        return _shipped(loaded)
    path = Path(str(option)).expanduser()
    weights, content_hash = probes.load(path)
    if weights.model_weights != loaded.weights:
        raise probes.broken(
            path,
            f"the probe was trained for {weights.model} with the weights {weights.model_weights}; "
            f"{loaded.name} has the weights {loaded.weights}",
        )
    return DomainProbe(weights, content_hash)


def _shipped(loaded: LoadedModel) -> DomainProbe | None:
    for path in sorted(SHIPPED.glob("*.npz")):
        weights, content_hash = probes.load(path)
        if weights.model_weights == loaded.weights:
            return DomainProbe(weights, content_hash)
    return None
