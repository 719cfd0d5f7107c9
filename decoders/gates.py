"""Gates: where a hybrid row may draft. They see the context and the draft's tokens, no model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from decoders.sampling import entropy

# Words that carry grammar rather than meaning. A table, not a tagger: the gate has to be a plain
# function of token ids. Other languages add theirs here.
FUNCTION_WORDS = frozenset(
    """
    a an the this that these those some any each every no
    and or but nor so yet if as than then because while although though whether
    of in on at by for from to with without into onto over under between among through during
    before after about against within upon per via
    i you he she it we they me him her us them my your his its our their mine yours
    who whom whose which what where when why how
    is are was were be been being am do does did has have had will would shall should can could may
    might must not
    there here also very too just only even such more most less least much many
    el la los las un una unos unas de del y o que en por para con sin se su lo al es son
    le les des du et ou dans sur pour avec sans ce cette ces est sont qui ne pas
    der die das ein eine einer den dem und oder von zu im am mit ist sind nicht auf
    """.split()
)
_WORD = re.compile(r"\w", re.UNICODE)


@dataclass(frozen=True)
class GateContext:
    """What is known before a draft: a function of the tokens emitted so far, never of the draft."""

    position: int
    """Output position of the draft's first token."""
    last_scores: Tensor | None = None
    """[vocab]: softmax is the law that the token before was drawn from; None before the first."""

    @cached_property
    def last_entropy(self) -> float | None:
        """Entropy of that law in nats, worked out when a gate asks; None before the first token."""
        return None if self.last_scores is None else entropy(self.last_scores)


class Gate(Protocol):
    """Says how much of a draft may stand."""

    def opens(self, context: GateContext) -> bool:
        """Whether any draft may stand here: False only if `admit` then allows none, whatever it is.

        Asked before a draft is drawn that costs time.
        """
        ...

    def admit(self, context: GateContext, token_ids: Sequence[int]) -> int:
        """How many of the draft's first tokens are allowed.

        Looking at the tokens themselves is noted, and costs a sampled draft its dense law.
        """
        ...


class StandardFirst:
    """No draft token before output position ``count``."""

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"standard_first must be at least 0, not {count}")
        self._count = count

    def opens(self, context: GateContext) -> bool:
        """From that position on."""
        return context.position >= self._count

    def admit(self, context: GateContext, token_ids: Sequence[int]) -> int:
        """All or nothing: a draft is never moved to a later position."""
        return len(token_ids) if self.opens(context) else 0


class EntropyGate:
    """No draft where the target was unsure of the token before: entropy above a bound, in nats."""

    def __init__(self, bound: float) -> None:
        if not 0 < bound < math.inf:
            raise ValueError(f"max_entropy must be a number above 0, not {bound}")
        self._bound = bound

    def opens(self, context: GateContext) -> bool:
        """Not before the first token."""
        last = context.last_entropy
        return last is not None and last <= self._bound

    def admit(self, context: GateContext, token_ids: Sequence[int]) -> int:
        """All or nothing."""
        return len(token_ids) if self.opens(context) else 0


class FunctionWords:
    """The token ids of one tokenizer that are a whole function word, or hold no letter or digit.

    ``pieces`` gives the text of each token id in turn, with its leading space.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._words: set[int] = set()
        self._neutral: set[int] = set()
        self._continues: set[int] = set()
        for token_id, piece in enumerate(pieces):
            if not _WORD.search(piece):
                self._neutral.add(token_id)
            elif piece.strip().lower() in FUNCTION_WORDS:
                self._words.add(token_id)
            if piece and _WORD.match(piece):
                self._continues.add(token_id)

    def simple_prefix(self, token_ids: Sequence[int]) -> int:
        """How many of the first tokens are simple.

        A function word followed by a token that begins with a letter is the start of another word
        (``in`` + ``formation``) and counts as content.
        """
        for i, token_id in enumerate(token_ids):
            if token_id in self._neutral:
                continue
            split = i + 1 < len(token_ids) and token_ids[i + 1] in self._continues
            if token_id not in self._words or split:
                return i
        return len(token_ids)


class ContentTokens:
    """Cuts a draft before its first content token, which is then decoded in the standard way."""

    def __init__(self, function_words: FunctionWords) -> None:
        self._function_words = function_words

    def opens(self, context: GateContext) -> bool:
        """Always: the tokens decide."""
        return True

    def admit(self, context: GateContext, token_ids: Sequence[int]) -> int:
        """The length of the draft's leading run of function words and punctuation."""
        return self._function_words.simple_prefix(token_ids)
