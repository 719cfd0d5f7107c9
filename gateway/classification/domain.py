"""The domain classifier: which of the ten domains a request belongs to, as independent probabilities.

Decides which windows of which messages count for which domain. Knows nothing of policies: it has no
thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gateway.classification import features, linear
from gateway.classification.base import Reading
from gateway.types import DOMAINS, ChatRequest, Signal

MAXIMUM_DOMAINS = ("medical", "legal")
"""Judged by the most suspicious window, so that a sentence in a long prompt is not averaged away; the
penalty below, and what stands around it in its window, still dilute it. Others: by the average."""

WINDOW_PENALTY = 0.25
"""Taken off a score per natural logarithm of a text's windows: each is one more chance of a false alarm."""

MAX_CHARACTERS = 4_000_000
"""Normalised characters scored of one request, some seconds of work; the rest shows as scored < total."""

SHIPPED_WEIGHTS = Path(__file__).parent / "weights" / "domain.npz"


class DomainClassifier:
    """Signal ``domain``, one for each of the ten, from the whole text of a request.

    Token counts are characters of normalised text (for a prompt of token ids: ids, none of them scored).
    """

    def __init__(self, *, weights: str | None = None) -> None:
        path = Path(weights) if weights is not None else SHIPPED_WEIGHTS
        self._model, self._hash = linear.load(path)

    @property
    def content_hash(self) -> str:
        """SHA-256 of the weights file."""
        return self._hash

    def classify(self, request: ChatRequest) -> Reading:
        """A probability for every domain; all 0.0 when there is no text."""
        if isinstance(request.prompt, tuple):
            # Ids of an unknown vocabulary cannot be read: say so instead of guessing from nothing.
            return Reading(_signals(np.zeros(len(DOMAINS))), 0, len(request.prompt))
        full = [features.normalise(text) for text in request.texts()]
        texts = list(_cut(full, MAX_CHARACTERS))
        last = last_user_turn([message.role for message in request.messages])
        scores = conversation_scores(self._model, texts, last)
        probabilities = (
            np.zeros(len(DOMAINS)) if scores is None else self._model.probabilities(scores)
        )
        return Reading(
            _signals(probabilities), sum(map(len, texts)), sum(len(text) for text in full)
        )


def conversation_scores(
    model: linear.LinearModel, texts: Sequence[str], last: int
) -> linear.Floats | None:
    """Uncalibrated scores of a conversation, shape (domains,); None when it has no text.

    ``texts`` are normalised messages and ``last`` is the index of the one that asks. Every message is
    scored alone, and all of them joined, so that a symptom told over several turns counts as well.
    """
    messages = [list(features.windows(text, linear.WINDOW, linear.STEP)) for text in texts]
    filled = [index for index, pieces in enumerate(messages) if pieces]
    if not filled:
        return None
    scores = {index: model.scores(messages[index]) for index in filled}
    joined = scores[filled[0]]
    if len(filled) > 1:
        text = " ".join(texts[index] for index in filled)
        joined = model.scores(list(features.windows(text, linear.WINDOW, linear.STEP)))
    asked = scores.get(last, joined)
    # A long system prompt must not drown the question, nor "thanks, go on" the conversation.
    typical = np.maximum(joined.mean(axis=0), asked.mean(axis=0))
    # A penalty per message: a conversation does not become harmless by going on.
    highest = np.max([_highest(rows) for rows in (joined, *scores.values())], axis=0)
    combined: linear.Floats = np.where(np.isin(DOMAINS, MAXIMUM_DOMAINS), highest, typical)
    return combined


def _highest(scores: linear.Floats) -> linear.Floats:
    highest: linear.Floats = scores.max(axis=0) - np.float32(WINDOW_PENALTY * np.log(len(scores)))
    return highest


def last_user_turn(roles: Sequence[str]) -> int:
    """The index of the message that asks: the user's last one, else the last of all."""
    turns = [index for index, role in enumerate(roles) if role == "user"]
    return turns[-1] if turns else len(roles) - 1


def _cut(texts: Sequence[str], limit: int) -> Iterator[str]:
    for text in texts:
        yield text[:limit]
        limit -= min(limit, len(text))


def _signals(probabilities: npt.NDArray[np.floating]) -> tuple[Signal, ...]:
    return tuple(
        Signal(name="domain", value=domain, score=float(probability), source="domain")
        for domain, probability in zip(DOMAINS, probabilities, strict=True)
    )
