"""What is counted in the text of an answer: hedging phrases, repetition, and agreement with a gold answer."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

# Phrases that weaken a statement, whole words only. A table, not a reading of the sentence; "may" and
# "can" say too often something else.
HEDGES = (
    *("perhaps", "maybe", "might", "could be", "possibly", "probably", "likely", "unlikely"),
    *("presumably", "apparently", "arguably", "seemingly", "supposedly", "roughly"),
    *("approximately", "generally", "typically", "usually", "often", "sometimes", "in some cases"),
    *("seems", "seem", "appears to", "appear to", "suggests", "tends to", "tend to"),
    *("uncertain", "unclear", "unsure", "not sure", "not certain", "hard to say", "it depends"),
    *("i think", "i believe", "i guess", "i suppose", "in my opinion", "as far as i know"),
    *(
        "to my knowledge",
        "if i recall",
        "i am not",
        "i'm not",
        "more or less",
        "kind of",
        "sort of",
    ),
)
_HEDGE = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(HEDGES, key=len)[::-1]))})(?!\w)")
_WORD = re.compile(r"\w+(?:['’]\w+)*")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "’‘“”…–—", " "))
NGRAM = 4


def num_words(text: str) -> int:
    """Runs of letters and digits."""
    return len(_WORD.findall(text))


def num_hedges(text: str) -> int:
    """Phrases of `HEDGES`; of those that overlap, the longer one that begins first."""
    return len(_HEDGE.findall(text.lower().replace("’", "'")))


def hedges_per_100_words(texts: Sequence[str]) -> float:
    """Over all texts together; 0.0 without words."""
    words = sum(map(num_words, texts))
    return 100 * sum(map(num_hedges, texts)) / words if words else 0.0


def repetition(token_ids: Sequence[int], n: int = NGRAM) -> float:
    """1 - distinct / all runs of ``n`` tokens; 0.0 of an answer that has none.

    "seq-rep-n" of Welleck et al., Neural text generation with unlikelihood training, ICLR 2020.
    """
    runs = [tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def normalized(text: str) -> str:
    """Lower case, without punctuation, articles and doubled spaces.

    As SQuAD's evaluation does it (Rajpurkar, Zhang, Lopyrev and Liang, arXiv 1606.05250).
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, golds: Sequence[str]) -> bool:
    """Whether the text is one of the gold answers, once both are `normalized`."""
    return normalized(text) in map(normalized, golds)


def contains(text: str, golds: Sequence[str]) -> bool:
    """Whether a gold answer stands in the text, as whole words, once both are `normalized`."""
    padded = f" {normalized(text)} "
    return any(f" {gold} " in padded for gold in map(normalized, golds) if gold)


def f1(text: str, golds: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of words, `normalized`, for the best gold answer."""
    return max(
        (_f1(normalized(text).split(), normalized(gold).split()) for gold in golds), default=0.0
    )


def _f1(words: Sequence[str], gold: Sequence[str]) -> float:
    if not words or not gold:
        return float(not words and not gold)
    common = sum((Counter(words) & Counter(gold)).values())
    return 2 * common / (len(words) + len(gold))
