"""What can be told of texts alone: their lengths, hedges, repetition, and facts, prompt by prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from gateway.classification.intervals import Rate
from gateway.experiments import wording
from gateway.experiments.decoding import Answer
from gateway.experiments.loops import is_loop
from gateway.experiments.statistics.clusters import Equivalence, Interval, equivalence, interval

Keyed = Mapping[tuple[str, int], Answer]
"""Answers by prompt and sample."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Of one arm; differences are from standard mode with the same seeds, prompts as clusters."""

    tokens: float
    """Mean length."""
    tokens_difference: Interval | None
    hedges: float
    """Hedging phrases in 100 words."""
    hedges_difference: Interval | None
    hedges_equivalence: Equivalence
    repetition: float
    """Mean share of runs of four tokens that were there before."""
    repetition_difference: Interval | None
    loops: Rate


class Factuality(msgspec.Struct, frozen=True, kw_only=True):
    """Against gold answers."""

    exact: Rate
    contains: Rate
    """Answers in which a gold answer stands."""
    f1: float
    f1_gap: Interval | None
    """F1 less that of standard mode with the same seeds."""


def quality(mine: Keyed, standard: Keyed, margin: float) -> Quality:
    """Of ``mine`` beside ``standard``; ``margin`` is in hedging phrases per 100 words."""
    answers = list(mine.values())
    hedges = _differences(
        mine, standard, lambda them: wording.hedges_per_100_words([one.text for one in them])
    )
    return Quality(
        tokens=_mean(len(one.token_ids) for one in answers),
        tokens_difference=interval(_differences(mine, standard, _tokens)),
        hedges=wording.hedges_per_100_words([one.text for one in answers]),
        hedges_difference=interval(hedges),
        hedges_equivalence=equivalence(hedges, margin),
        repetition=_repetition(answers),
        repetition_difference=interval(_differences(mine, standard, _repetition)),
        loops=Rate.of(sum(is_loop(one.token_ids) for one in answers), len(answers)),
    )


def factuality(
    mine: Keyed, standard: Keyed, golds: Mapping[str, tuple[str, ...]]
) -> Factuality | None:
    """None where no prompt has a gold answer."""
    told = {key: one for key, one in mine.items() if one.prompt in golds}
    if not told:
        return None

    def score(answers: list[Answer]) -> float:
        return _mean(wording.f1(one.text, golds[one.prompt]) for one in answers)

    texts = [(one.text, golds[one.prompt]) for one in told.values()]
    return Factuality(
        exact=Rate.of(sum(wording.exact_match(*pair) for pair in texts), len(texts)),
        contains=Rate.of(sum(wording.contains(*pair) for pair in texts), len(texts)),
        f1=_mean(wording.f1(*pair) for pair in texts),
        f1_gap=interval(_differences(told, standard, score)),
    )


def _differences(
    mine: Keyed, standard: Keyed, measure: Callable[[list[Answer]], float]
) -> list[float]:
    """One for each prompt, over the samples that both have of it."""
    prompts: dict[str, list[tuple[str, int]]] = {}
    for key in mine:
        if key in standard:
            prompts.setdefault(key[0], []).append(key)
    return [
        measure([mine[key] for key in keys]) - measure([standard[key] for key in keys])
        for keys in prompts.values()
    ]


def _tokens(answers: list[Answer]) -> float:
    return _mean(len(one.token_ids) for one in answers)


def _repetition(answers: list[Answer]) -> float:
    return _mean(wording.repetition(one.token_ids) for one in answers)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
