"""The third stage: a careful reading of short English texts.

It costs more than both others together, so it reads only what fits into one window: everything else is
judged by two stages. Knows nothing of policies or thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification.stack import IS_BAN, Stack
from gateway.classification.stages import Floats
from gateway.classification.transformer import FEATURES, WINDOW, Transformer, WordPieces, shapes
from gateway.types import DOMAINS

PREFIX = "reader."
"""Before the names of its arrays in a weights file."""
MIN_KNOWN = 0.7
"""A text with a smaller share of words that the reader knows whole is not English enough for it."""
Ids = list[int]
Arrays = Mapping[str, npt.NDArray[Any]]


class Head(msgspec.Struct, frozen=True):
    """Scores from what a text means."""

    first: Floats
    first_bias: Floats
    last: Floats
    last_bias: Floats

    def scores(self, features: Floats) -> Floats:
        """Shape (texts, domains)."""
        hidden = np.maximum(features @ self.first + self.first_bias, 0.0)
        scores: Floats = hidden @ self.last + self.last_bias
        return scores


class Reader:
    """Judges what it can read. Safe to use from several threads."""

    def __init__(self, model: Transformer, head: Head, stack: Stack) -> None:
        """``stack`` weighs its scores after the evidence of the other stages."""
        self.model, self.head, self.stack = model, head, stack

    def logits(self, texts: Sequence[str], evidence: Floats) -> Floats | None:
        """Of normalised texts, given the two stages' evidence; None where it cannot read them.

        Of several texts each is read alone, too: a conversation does not become harmless by going on.
        """
        ids = passage(self.model.pieces, texts)
        if ids is None:
            return None
        filled = [text for text in texts if text]
        alone = [self.model.pieces.ids(text)[0] for text in filled] if len(filled) > 1 else []
        scores = self.head.scores(self.model.read([ids, *alone]))
        own = np.where(IS_BAN, scores.max(axis=0), scores[0])
        return self.stack.logits(np.concatenate((evidence, own[None])))


def passage(pieces: WordPieces, texts: Sequence[str]) -> Ids | None:
    """What it reads of the texts of a conversation: all of it, or nothing."""
    joined = " ".join(text for text in texts if text)
    # No piece is longer than a word, and most are longer than two letters.
    if len(joined) > WINDOW * 8:
        return None
    ids, known = pieces.ids(joined)
    return ids if ids and len(ids) <= WINDOW - 2 and known >= MIN_KNOWN else None


def transformer_of(arrays: Arrays) -> Transformer | None:
    """The transformer among the arrays of a file; None where there is none."""
    if f"{PREFIX}vocabulary" not in arrays:
        return None
    own = _own(arrays)
    names = own["vocabulary"].tobytes().decode("utf-8").split("\n")
    return Transformer(WordPieces(names), own)


def reader_of(arrays: Arrays) -> Reader | None:
    """The reader in the arrays of a checked file; None where there is none."""
    model = transformer_of(arrays)
    if model is None:
        return None
    own = _own(arrays)
    head = Head(*(own[name].astype(np.float32) for name in _HEAD))
    return Reader(model, head, Stack(own["stack"], own["stack_bias"]))


def arrays_of(head: Head, stack: Stack) -> dict[str, npt.NDArray[Any]]:
    """What is trained of a reader, as a file holds it."""
    values = (head.first, head.first_bias, head.last, head.last_bias)
    own: dict[str, npt.NDArray[Any]] = dict(zip(_HEAD, values, strict=True))
    own["head1"], own["head2"] = head.first.astype(np.float16), head.last.astype(np.float16)
    own["stack"] = stack.weights.astype(np.float32)
    own["stack_bias"] = stack.bias.astype(np.float32)
    return {PREFIX + name: value for name, value in own.items()}


def without(arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    """The arrays that are not a reader's."""
    return {name: value for name, value in arrays.items() if not name.startswith(PREFIX)}


def mismatch(arrays: Arrays, kinds: int) -> str | None:
    """What is wrong with a file's reader, in words; None when it fits, or when there is none."""
    own = _own(arrays)
    if not own:
        return None
    try:
        names = own["vocabulary"].tobytes().decode("utf-8").split("\n")
        hidden = own["head1"].shape[1]
    except (KeyError, IndexError, UnicodeDecodeError):
        return "the reader has no vocabulary or no head"
    if missing := {"[UNK]", "[CLS]", "[SEP]"} - set(names):
        return f"the reader's vocabulary lacks {', '.join(sorted(missing))}"
    domains = len(DOMAINS)
    wanted = shapes(len(names)) | {
        "head1": (FEATURES, hidden),
        "head1_bias": (hidden,),
        "head2": (hidden, domains),
        "head2_bias": (domains,),
        "stack": (kinds + 1, domains),
        "stack_bias": (domains,),
    }
    for name, shape in wanted.items():
        if name not in own or own[name].shape != shape:
            was = own[name].shape if name in own else "missing"
            return f"the reader's {name} has shape {was}, expected {shape}"
        # Quantized numbers are bytes; everything else must be a finite number.
        if own[name].dtype != np.int8 and not np.isfinite(own[name].astype(np.float64)).all():
            return f"the reader's {name} holds values that are not finite numbers"
    return None


_HEAD = ("head1", "head1_bias", "head2", "head2_bias")
TRAINED = tuple(f"{PREFIX}{name}" for name in (*_HEAD, "stack", "stack_bias"))
"""The arrays that labels have a part in."""


def _own(arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    return {
        name.removeprefix(PREFIX): value
        for name, value in arrays.items()
        if name.startswith(PREFIX)
    }
