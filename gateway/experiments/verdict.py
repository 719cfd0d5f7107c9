"""What is said of an arm that was held against standard mode, with all findings of a run together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from gateway.again import first_difference
from gateway.experiments.arms import Arm
from gateway.experiments.decoding import Answer
from gateway.experiments.statistics.agreement import Agreement
from gateway.experiments.statistics.permutation import TwoSample

IMPOSSIBLE = "wrong: tokens that the model rules out"
ALARM = "another law: the e-value is past its alarm"
DIFFER = "another law: two samples differ"
OTHER = "wrong: other tokens for the same seed"
SAME = "the same tokens"
NOTHING = "other tokens; nothing speaks against the same law"
TOO_FEW = "other tokens; too few answers to tell"
NO_PAIRS = "nothing to hold it against"
REFERENCE = "what the others are held against"
UNSOUND = (IMPOSSIBLE, ALARM, DIFFER, OTHER)
MAX_DRAWS = 100_000
"""Labellings of a permutation test, however small alpha is."""
_EXACT = ("float32", "bfloat16-weights")
"""Types whose arithmetic is that of float32."""
Answers = Mapping[tuple[str, int], Answer]
"""Of one arm, by prompt and sample."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first token at which an answer parts from standard mode's with the same seed."""

    prompt: str
    sample: int
    position: int
    margin: float | None
    """Nats that standard mode's token was ahead by: next to nothing is rounding. None: its answer had
    ended there, or no other token was possible."""
    wrong: bool
    """Whether the margin is more than rounding accounts for; no margin is not known to be."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What all findings of a run are held against, so that together they keep to alpha."""

    log_e: float
    """From which an e-value alarms."""
    p: float
    """Up to which a p-value does."""
    draws: int


def limits_of(
    alpha: float, draws: int | None, temperatures: Sequence[float], arms: Sequence[Arm]
) -> Limits:
    """Half of alpha over all e-values, half over all p-values: at temperature 0 there are none."""
    bets = max(1, len(temperatures) * (len(arms) + 1))
    tests = max(1, 2 * sum(t > 0 for t in temperatures) * sum(arm.drafts for arm in arms))
    p = alpha / 2 / tests
    draws = draws or min(MAX_DRAWS, math.ceil(2 / p))
    return Limits(log_e=math.log(2 * bets / alpha), p=p, draws=draws)


def divergences(mine: Answers, standard: Answers) -> list[Divergence]:
    """Of all answers that part from standard mode's with the same seed."""
    found = []
    for key, answer in mine.items():
        if key not in standard:
            continue
        at = first_difference(answer.token_ids, standard[key].token_ids)
        if at is None:
            continue
        margins = standard[key].margins
        margin = margins[at] if at < len(margins) else None
        wrong = margin is not None and margin > _rounding(standard[key].dtype)
        found.append(
            Divergence(prompt=key[0], sample=key[1], position=at, margin=margin, wrong=wrong)
        )
    return found


def furthest(found: Sequence[Divergence]) -> Divergence | None:
    """The one whose token was furthest ahead; one that is wrong goes before one that may not be."""
    return max(
        found,
        key=lambda one: (one.wrong, math.inf if one.margin is None else one.margin),
        default=None,
    )


def _rounding(dtype: str) -> float:
    """Nats by which a token may be ahead and lose to rounding."""
    return 1e-3 if dtype in _EXACT else 0.1


def of_evidence(log_e: float, impossible: int, limits: Limits) -> str | None:
    """What the engine's own measurements speak against; None: nothing."""
    if impossible:
        return IMPOSSIBLE
    return ALARM if log_e >= limits.log_e else None


def of_tokens(
    shared: Agreement,
    wrong: bool,
    temperature: float,
    found: Sequence[TwoSample | None],
    limits: Limits,
) -> str:
    """Of an arm that drafts."""
    tests = [one for one in found if one is not None]
    if wrong:
        return OTHER
    if shared.exact.rows and shared.exact.hits == shared.exact.rows:
        return SAME
    if any(one.p <= limits.p for one in tests):
        return DIFFER
    if not shared.exact.rows:
        return NO_PAIRS
    if temperature > 0 and all(one.least > limits.p for one in tests):
        return TOO_FEW
    return NOTHING
