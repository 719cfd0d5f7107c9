"""Which tokens are a hedge, such as "perhaps". Knows nothing of models."""

from __future__ import annotations

from collections.abc import Iterable

# Words that weaken a statement. A table, not a reading of the sentence: the measure has to be a plain
# function of token ids. Other languages add theirs here.
HEDGE_WORDS = frozenset(
    """
    perhaps maybe might may could possibly probably likely unlikely presumably apparently arguably
    seemingly supposedly roughly approximately generally typically usually often sometimes
    seems seem appears appear suggests suggest uncertain unclear unsure
    quizás quizá probablemente posiblemente peut-être probablement vielleicht möglicherweise
    wahrscheinlich
    """.split()
)


def hedge_ids(pieces: Iterable[str]) -> tuple[int, ...]:
    """The ids of tokens that are a whole word of `HEDGE_WORDS`, at the start of a word.

    ``pieces`` gives the text of each token id in turn, with its leading space. One without it counts
    where it has a capital, as at the start of a line: "may" alone is the end of "dismay" too. A hedge
    that the tokenizer takes apart is not seen; what is measured is exact for any set of tokens.
    """
    return tuple(token_id for token_id, piece in enumerate(pieces) if _is_hedge(piece))


def _is_hedge(piece: str) -> bool:
    starts = piece[:1] == " " or piece[:1].isupper()
    return starts and piece.strip().lower() in HEDGE_WORDS
