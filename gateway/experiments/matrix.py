"""The decision matrix, measured: by domain what is accepted, what is saved, and what evidence says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from gateway.classification.intervals import Rate
from gateway.evidence.eprocess import EProcess
from gateway.experiments.arms import STANDARD, Arm
from gateway.experiments.guard import is_disturbed
from gateway.experiments.statistics.clusters import Interval, interval
from gateway.experiments.timing import Timed, TimedBlock

MIN_TOKENS = 8
"""Of a shorter answer the time is the prefill's."""
_REASONS = ("other tokens", "loop", "short", "disturbed")


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on one domain."""

    domain: str
    arm: str
    mode: str
    answers: int
    prompts: int
    """Of which an answer counts."""
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    speedup: Interval | None
    """Tokens per second over standard mode's on the same prompt and seed: the geometric mean over the
    prompts, with its 95 % interval. None where no answer counts."""
    equal: Rate
    """Answers with the tokens of standard mode."""
    log10_e: float | None
    """None: the bet is lost for good."""
    impossible_tokens: int
    sound: bool
    """Whether evidence speaks against nothing."""
    left_out: dict[str, int]
    """Why answers did not count → how many."""


def measured(
    found: Sequence[TimedBlock], arms: Sequence[Arm], *, alpha: float
) -> tuple[Measured, ...]:
    """One entry for each domain and each arm that drafts, domains in the order of their prompts."""
    readings = [reading for block in found for reading in (block.before, block.after)]
    domains = dict.fromkeys(answer.domain for block in found for answer in block.answers)
    cells = [(domain, arm) for domain in domains for arm in arms if arm.drafts]
    # All e-values share alpha.
    return tuple(
        _measured(found, readings, domain, arm, alpha / len(cells)) for domain, arm in cells
    )


def _measured(
    found: Sequence[TimedBlock], readings: Sequence[float], domain: str, arm: Arm, alpha: float
) -> Measured:
    pairs: list[tuple[Timed, Timed]] = []
    left_out = dict.fromkeys(_REASONS, 0)
    logs: dict[str, list[float]] = {}
    for block in found:
        pair = _pair(block, domain, arm.name)
        if pair is None:
            continue
        pairs.append(pair)
        disturbed = is_disturbed(readings, block.before, block.after)
        reason = _why_not(*pair, disturbed=disturbed, same_noise=arm.decision.verifier == "coupled")
        if reason is not None:
            left_out[reason] += 1
            continue
        mine, standard = pair
        ratio = mine.tokens_per_second / standard.tokens_per_second
        logs.setdefault(block.prompt, []).append(math.log(ratio))
    mine_all = [mine for mine, _ in pairs]
    proposed, steps = sum(a.proposed for a in mine_all), sum(a.steps for a in mine_all)
    bet, impossible = _evidence(mine_all)
    equal = Rate.of(sum(a.token_ids == b.token_ids for a, b in pairs), len(pairs))
    return Measured(
        domain=domain,
        arm=arm.name,
        mode=arm.decision.mode.value,
        answers=len(pairs),
        prompts=len(logs),
        acceptance_rate=sum(a.accepted for a in mine_all) / proposed if proposed else None,
        mean_acceptance_length=sum(len(a.token_ids) for a in mine_all) / steps if steps else None,
        speedup=_exponential(interval([statistics.fmean(rounds) for rounds in logs.values()])),
        equal=equal,
        log10_e=bet / math.log(10) if math.isfinite(bet) else None,
        impossible_tokens=impossible,
        sound=not impossible and bet < -math.log(alpha),
        left_out={reason: count for reason, count in left_out.items() if count},
    )


def _pair(block: TimedBlock, domain: str, arm: str) -> tuple[Timed, Timed] | None:
    """The arm's answer and standard mode's."""
    by_arm = {answer.arm: answer for answer in block.answers if answer.domain == domain}
    if arm not in by_arm or STANDARD not in by_arm:
        return None
    return by_arm[arm], by_arm[STANDARD]


def _why_not(mine: Timed, standard: Timed, *, disturbed: bool, same_noise: bool) -> str | None:
    """The first reason why a pair says nothing about speed."""
    if same_noise and mine.token_ids != standard.token_ids:
        return "other tokens"
    if mine.loop or standard.loop:
        return "loop"
    if min(len(mine.token_ids), len(standard.token_ids)) < MIN_TOKENS:
        return "short"
    return "disturbed" if disturbed else None


def _evidence(answers: Sequence[Timed]) -> tuple[float, int]:
    """The logarithm of the e-value, and the tokens that the model rules out."""
    bet, impossible = EProcess(), 0
    for answer in answers:
        if answer.tally is not None:
            bet = bet.update(answer.tally)
            impossible += answer.tally.num_impossible
    return bet.log_e, impossible


def _exponential(found: Interval | None) -> Interval | None:
    if found is None:
        return None
    low, high = (None if bound is None else _exp(bound) for bound in (found.low, found.high))
    return Interval(mean=_exp(found.mean), low=low, high=high, clusters=found.clusters)


def _exp(value: float) -> float:
    """Finite: of two prompts that disagree, the interval is wider than a float is long."""
    return math.exp(min(value, 700.0))
