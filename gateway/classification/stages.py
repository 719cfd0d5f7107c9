"""The two stages of the text model: each gives evidence about a conversation, domain by domain.

Decides which windows of which messages count for which domain. Knows nothing of probabilities: a stack
weighs the evidence of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification import encoder, features, linear

Floats = npt.NDArray[np.floating]

SUSPICIOUS = (0, 2, 3)
"""The kinds of evidence, the lexical stage's first, that speak of the most suspicious window."""

WINDOW_PENALTY = 0.25
"""Taken off a score per natural logarithm of a text's windows: each is one more chance of a false alarm."""


class Conversation(msgspec.Struct, frozen=True):
    """The normalised texts of a request's messages, none of them empty."""

    texts: tuple[str, ...]
    asks: int
    """The index of the one that asks: the user's last one, else the last of all."""


class Stage(Protocol):
    """One opinion about a conversation. Safe to call from several threads."""

    @property
    def kinds(self) -> int:
        """How many kinds of evidence it gives."""
        ...

    def evidence(self, conversation: Conversation) -> Floats:
        """Uncalibrated scores of shape (kinds, domains), higher where a domain is likelier."""
        ...


class LexicalStage:
    """Words and letters. Two kinds: of the most suspicious window, and of the typical one."""

    kinds = 2

    def __init__(self, model: linear.LinearModel) -> None:
        self.model = model

    def evidence(self, conversation: Conversation) -> Floats:
        """Every message is scored alone, and all joined: a symptom may be told over several turns."""
        alone = [self._scores(text) for text in conversation.texts]
        joined = alone[0] if len(alone) == 1 else self._scores(" ".join(conversation.texts))
        return _two_kinds(joined, alone, conversation.asks)

    def _scores(self, text: str) -> Floats:
        return self.model.scores(list(features.windows(text, linear.WINDOW, linear.STEP)))


class EncoderStage:
    """Meaning. Three kinds: of the most suspicious sentence and paragraph, and of the typical paragraph."""

    kinds = 3

    def __init__(self, model: encoder.Encoder) -> None:
        self.model = model

    def evidence(self, conversation: Conversation) -> Floats:
        """Windows reach over messages as well as within them."""
        parts = [self.model.blocks(text) for text in conversation.texts]
        longs, shorts, asked = layout([len(part) for part in parts], conversation.asks)
        runs = [run for group in (*longs, *shorts) for run in group]
        starts, ends = np.array(runs, dtype=np.int64).T
        scores = self.model.scores(encoder.join(parts), starts, ends)
        sizes = np.cumsum([len(group) for group in (*longs, *shorts)])[:-1]
        groups = np.split(scores, sizes)
        typical = np.maximum(groups[0].mean(axis=0), groups[asked].mean(axis=0))
        # A penalty per message: a conversation does not become harmless by going on.
        sentence = np.max([highest(group) for group in groups[len(longs) :]], axis=0)
        paragraph = np.max([highest(group) for group in groups[: len(longs)]], axis=0)
        return np.stack((sentence, paragraph, typical))


Runs = list[tuple[int, int]]
"""Windows, each from a block up to another."""


def layout(lengths: Sequence[int], asks: int) -> tuple[list[Runs], list[Runs], int]:
    """The windows over texts of ``lengths`` blocks.

    Returns the long ones, of all texts joined and then of each text where there are several; the short
    ones of each text; and which group of the long ones is that of the text that asks.
    """
    ends = np.cumsum([0, *lengths]).tolist()
    spans = list(itertools.pairwise(ends))
    longs = [encoder.windows(0, ends[-1], encoder.LONG)]
    if len(spans) > 1:
        longs += [encoder.windows(first, last, encoder.LONG) for first, last in spans]
    shorts = [encoder.windows(first, last, encoder.SHORT) for first, last in spans]
    return longs, shorts, asks + 1 if len(spans) > 1 else 0


def _two_kinds(joined: Floats, alone: Sequence[Floats], asks: int) -> Floats:
    # A long system prompt must not drown the question, nor "thanks, go on" the conversation.
    typical = np.maximum(joined.mean(axis=0), alone[asks].mean(axis=0))
    # A penalty per message: a conversation does not become harmless by going on.
    most = np.max([highest(scores) for scores in (joined, *alone)], axis=0)
    return np.stack((most, typical)).astype(np.float32)


def highest(scores: Floats) -> Floats:
    """The highest score of each domain over the windows of a text, less the penalty for their number."""
    most: Floats = scores.max(axis=0) - np.float32(WINDOW_PENALTY * np.log(len(scores)))
    return most
