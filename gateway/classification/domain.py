"""The domain classifier: which of the ten domains a request belongs to, as independent probabilities.

Knows nothing of policies: it has no thresholds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gateway.classification import weights as weights_file
from gateway.classification.base import Reading
from gateway.classification.stages import Floats
from gateway.types import DOMAINS, ChatRequest, Signal

MAX_CHARACTERS = 120_000
"""Normalised characters scored of one request, up to a second of work; the rest shows as scored < total."""

SHIPPED_WEIGHTS = Path(__file__).parent / "weights" / "domain.npz"


class DomainClassifier:
    """Signal ``domain``, one for each of the ten, from the whole text of a request.

    Token counts are characters of normalised text (for a prompt of token ids: ids, none of them scored).
    """

    def __init__(self, *, weights: str | None = None, max_characters: int = MAX_CHARACTERS) -> None:
        path = Path(weights) if weights is not None else SHIPPED_WEIGHTS
        self._model, self._hash = weights_file.load(path)
        self._max_characters = max_characters

    @property
    def content_hash(self) -> str:
        """SHA-256 of the weights file."""
        return self._hash

    def classify(self, request: ChatRequest) -> Reading:
        """A probability for every domain; all 0.0 when there is no text."""
        if isinstance(request.prompt, tuple):
            # Ids of an unknown vocabulary cannot be read: say so instead of guessing from nothing.
            return Reading(
                _signals(np.zeros(len(DOMAINS), dtype=np.float32)), 0, len(request.prompt)
            )
        texts = request.texts()
        # Tools that are offered come first: they are read, but they do not ask.
        offered = [""] * (len(texts) - len(request.messages))
        probabilities, scored, total = self._model.probabilities(
            texts,
            [*offered, *(message.role for message in request.messages)],
            max_characters=self._max_characters,
        )
        return Reading(_signals(probabilities), scored, total)


def _signals(probabilities: Floats) -> tuple[Signal, ...]:
    return tuple(
        Signal(name="domain", value=domain, score=float(probability), source="domain")
        for domain, probability in zip(DOMAINS, probabilities, strict=True)
    )
