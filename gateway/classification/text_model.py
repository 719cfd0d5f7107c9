"""The text model: the stages' evidence about a conversation, weighed into a probability for each domain.

Reads every text as it stands and, where words are disguised or encoded, a second time without that.
Knows nothing of requests, policies or thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.classification import features
from gateway.classification.reader import Reader
from gateway.classification.stack import IS_BAN, Stack
from gateway.classification.stages import Conversation, Floats, Stage
from gateway.classification.views import second_reading
from gateway.types import DOMAINS

_MAX_LOGIT = 30.0


class TextModel:
    """Independent, calibrated probabilities of the ten domains. Safe to use from several threads."""

    def __init__(self, stages: Sequence[Stage], stack: Stack, reader: Reader | None = None) -> None:
        self.stages = tuple(stages)
        self.stack = stack
        self.reader = reader

    def probabilities(
        self, texts: Sequence[str], roles: Sequence[str], *, max_characters: int | None = None
    ) -> tuple[Floats, int, int]:
        """Of the messages of a conversation: probabilities of shape (domains,), characters read, and of all.

        Characters are those of normalised text; all of ``max_characters`` are read, and no more. Without
        any text every probability is 0.0.
        """
        normal = [features.normalise(text) for text in texts]
        read = _cut(normal, max_characters)
        logits = self._logits(read, roles)
        if logits is None:
            return np.zeros(len(DOMAINS), dtype=np.float32), 0, 0
        hidden = self._logits(_cut(_second(texts, max_characters), max_characters), roles)
        if hidden is not None:
            logits = np.where(IS_BAN, np.maximum(logits, hidden), logits)
        return logistic(logits), sum(map(len, read)), sum(map(len, normal))

    def _logits(self, texts: Sequence[str], roles: Sequence[str]) -> Floats | None:
        found = evidence(self.stages, texts, roles)
        if found is None:
            return None
        careful = None if self.reader is None else self.reader.logits(texts, found)
        return self.stack.logits(found) if careful is None else careful


def evidence(stages: Sequence[Stage], texts: Sequence[str], roles: Sequence[str]) -> Floats | None:
    """Of normalised texts: the evidence of all stages, shape (kinds, domains); None without any text."""
    conversation = conversation_of(texts, roles)
    if conversation is None:
        return None
    return np.concatenate([stage.evidence(conversation) for stage in stages])


def logistic(logits: Floats) -> Floats:
    """Probabilities of the same shape."""
    bounded = np.clip(logits, -_MAX_LOGIT, _MAX_LOGIT)
    probabilities: Floats = (1.0 / (1.0 + np.exp(-bounded))).astype(np.float32)
    return probabilities


def conversation_of(texts: Sequence[str], roles: Sequence[str]) -> Conversation | None:
    """The texts that are not empty, and which of them asks; None when all are."""
    filled = [index for index, text in enumerate(texts) if text]
    if not filled:
        return None
    turns = [at for at, index in enumerate(filled) if index < len(roles) and roles[index] == "user"]
    asks = turns[-1] if turns else len(filled) - 1
    return Conversation(tuple(texts[index] for index in filled), asks)


def _second(texts: Sequence[str], limit: int | None) -> list[str]:
    # Normalising never makes a text much longer, so this many characters hold all that is read.
    return [features.normalise(second_reading(text[:limit])) for text in texts]


def _cut(texts: Sequence[str], limit: int | None) -> list[str]:
    if limit is None:
        return list(texts)
    kept = []
    for text in texts:
        kept.append(text[:limit])
        limit -= min(limit, len(text))
    return kept
