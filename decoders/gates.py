"""Gates: where a hybrid row may draft. They see the position and the draft's tokens, no model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

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


class Gate(Protocol):
    """Says how much of a draft may stand."""

    def admit(self, position: int, token_ids: Sequence[int]) -> int:
        """How many of the draft's first tokens are allowed; the first stands at output ``position``.

        Looking at the tokens themselves is noted, and costs a sampled draft its dense law.
        """
        ...


class StandardFirst:
    """No draft token before output position ``count``."""

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"standard_first must be at least 0, not {count}")
        self._count = count

    def admit(self, position: int, token_ids: Sequence[int]) -> int:
        """All or nothing: a draft is never moved to a later position."""
        return len(token_ids) if position >= self._count else 0


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

    def admit(self, position: int, token_ids: Sequence[int]) -> int:
        """The length of the draft's leading run of function words and punctuation."""
        return self._function_words.simple_prefix(token_ids)
