"""What other modes and verifiers make of the texts of standard mode: the answers, held side by side.

Each arm answers every prompt with the seeds of standard mode, and standard mode once more with seeds
of its own. With shared seeds an exact, `coupled` decoder says word for word the same. With independent
seeds two answers differ whoever wrote them, so that agreement says nothing, and only their laws can be
compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gateway.evidence.eprocess import EProcess
from gateway.evidence.reading import Difference
from gateway.experiments.arms import AGAIN, STANDARD, Arm, again
from gateway.experiments.decoding import Answer, Task
from gateway.experiments.prompts import Prompt
from gateway.experiments.quality import Factuality, Quality, factuality, quality
from gateway.experiments.statistics.agreement import Agreement, agreement
from gateway.experiments.statistics.mmd import Answers, mmd_test
from gateway.experiments.statistics.permutation import TwoSample
from gateway.experiments.statistics.separation import separation_test
from gateway.experiments.verdict import (
    REFERENCE,
    UNSOUND,
    Divergence,
    Limits,
    divergences,
    furthest,
    limits_of,
    of_evidence,
    of_tokens,
)
from gateway.tally import Tally

MAX_TESTED = 1500
"""Answers of both sides that the tests take: the classifier's work grows with their cube."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the summary is made with; none of it changes an answer."""

    alpha: float = 1e-3
    """How seldom a sound decoder may be called unsound, whatever is found first: half of it is for all
    e-values together, half for all p-values."""
    margin: float = 0.5
    """Hedging phrases in 100 words that are as good as none."""
    draws: int | None = None
    """Labellings of a permutation test; None: as many as ``alpha`` asks for."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one temperature, beside standard mode."""

    temperature: float
    arm: str
    lossy: bool
    answers: int
    prompts: int
    shared: Agreement | None
    """With standard mode's answers to the same seeds; None for standard mode itself."""
    independent: Agreement | None
    """With answers of standard mode to other seeds."""
    divergence: Divergence | None
    """The one whose token was furthest ahead."""
    mmd: TwoSample | None
    """Against answers of standard mode to other seeds; None at temperature 0, where there is no law."""
    separation: TwoSample | None
    log10_e: float | None
    """Of the bet against the target's law; 0 or less speaks for it. None: the bet is lost for good."""
    impossible_tokens: int
    entropy: float | None
    """Mean of the target's law, nats per token; None at temperature 0."""
    surprisal: Difference
    acceptance: Difference
    tail: Difference
    draft_blind: Difference
    hedge_tokens: Difference
    quality: Quality
    factuality: Factuality | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    distortion: float
    """The most that a lossy verifier has spent on one answer."""
    unsound: bool
    """Whether an exact verifier is found to change the law, with all tests together at alpha."""
    verdict: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found."""

    answers: int
    planned: int
    """Fewer answers than were planned: the run was interrupted."""
    options: Options
    comparisons: tuple[Comparison, ...]


def plan(
    prompts: Sequence[Prompt],
    temperatures: Sequence[float],
    arms: Sequence[Arm],
    *,
    samples: int,
    max_tokens: int,
    seed: int,
) -> tuple[Task, ...]:
    """Every answer to make, all arms of a prompt together; at temperature 0 one sample of each is all."""
    return tuple(
        Task(
            prompt=prompt,
            temperature=temperature,
            arm=arm,
            sample=sample,
            max_tokens=max_tokens,
            seed=seed,
        )
        for sample in range(samples)
        for prompt in prompts
        for temperature in temperatures
        if temperature > 0 or sample == 0
        for arm in (*arms, again())
    )


def summarize(
    answers: Sequence[Answer],
    arms: Sequence[Arm],
    prompts: Sequence[Prompt],
    *,
    planned: int,
    options: Options,
) -> Summary:
    """Hold every arm against standard mode, at each temperature of which there are answers."""
    golds = {prompt.id: prompt.gold for prompt in prompts if prompt.gold}
    temperatures = sorted({answer.temperature for answer in answers})
    limits = limits_of(options.alpha, options.draws, temperatures, arms)
    comparisons = []
    for temperature in temperatures:
        mine = [answer for answer in answers if answer.temperature == temperature]
        of_arm = {arm.name: _of(mine, arm.name) for arm in (*arms, again())}
        for arm in (*arms, again()):
            if of_arm[arm.name] and of_arm[STANDARD]:
                comparisons.append(_compare(arm, of_arm, golds, options, limits))
    return Summary(
        answers=len(answers), planned=planned, options=options, comparisons=tuple(comparisons)
    )


_Key = tuple[str, int]


def _of(answers: Sequence[Answer], arm: str) -> dict[_Key, Answer]:
    return {(one.prompt, one.sample): one for one in answers if one.arm == arm}


def _compare(
    arm: Arm,
    of_arm: dict[str, dict[_Key, Answer]],
    golds: dict[str, tuple[str, ...]],
    options: Options,
    limits: Limits,
) -> Comparison:
    mine, standard, others = of_arm[arm.name], of_arm[STANDARD], of_arm[AGAIN]
    # Standard mode with other seeds is itself the independent sample: it is held against the first.
    independent = standard if arm.name == AGAIN else others
    shared = None if arm.name in (STANDARD, AGAIN) else _agreement(mine, standard)
    tally = _sum(mine)
    log_e = _log_e(mine)
    temperature = next(iter(mine.values())).temperature
    blocks = _blocks(mine, independent) if temperature > 0 else []
    mmd = mmd_test(blocks, draws=limits.draws) if blocks else None
    separation = separation_test(blocks, draws=limits.draws) if blocks else None
    parted = [] if shared is None else divergences(mine, standard)
    verdict = of_evidence(log_e, tally.num_impossible, limits)
    if verdict is None:
        verdict = REFERENCE
        if shared is not None:
            wrong = arm.decision.verifier == "coupled" and any(one.wrong for one in parted)
            verdict = of_tokens(shared, wrong, temperature, (mmd, separation), limits)
    steps, proposed = (
        sum(getattr(a, name) for a in mine.values()) for name in ("steps", "proposed")
    )
    return Comparison(
        temperature=temperature,
        arm=arm.name,
        lossy=arm.lossy,
        answers=len(mine),
        prompts=len({prompt for prompt, _ in mine}),
        shared=shared,
        independent=_agreement(mine, independent) if independent else None,
        divergence=furthest(parted),
        mmd=mmd,
        separation=separation,
        log10_e=log_e / math.log(10) if math.isfinite(log_e) else None,
        impossible_tokens=tally.num_impossible,
        entropy=tally.surprisal.expected / tally.num_tokens
        if tally.num_tokens and temperature > 0
        else None,
        surprisal=Difference.of(tally.surprisal, tally.num_tokens),
        acceptance=Difference.of(tally.accepted, tally.num_tokens),
        tail=Difference.of(tally.tail, tally.num_tokens),
        draft_blind=Difference.of(tally.draft_blind, tally.num_tokens),
        hedge_tokens=Difference.of(tally.hedging, tally.num_tokens),
        quality=quality(mine, standard, options.margin),
        factuality=factuality(mine, standard, golds),
        acceptance_rate=sum(a.accepted for a in mine.values()) / proposed if proposed else None,
        mean_acceptance_length=sum(len(a.token_ids) for a in mine.values()) / steps
        if steps
        else None,
        distortion=max(a.distortion for a in mine.values()),
        unsound=verdict in UNSOUND and not arm.lossy,
        verdict=verdict,
    )


def _agreement(mine: dict[_Key, Answer], others: dict[_Key, Answer]) -> Agreement:
    keys = [key for key in mine if key in others]
    return agreement((mine[key].token_ids, others[key].token_ids) for key in keys)


def _sum(answers: dict[_Key, Answer]) -> Tally:
    total = Tally()
    for answer in answers.values():
        total += answer.tally or Tally()
    return total


def _log_e(answers: dict[_Key, Answer]) -> float:
    """In the order of the plan, whichever answer ended first: a bet may not choose its order."""
    bet = EProcess()
    for _, answer in sorted(answers.items(), key=lambda item: (item[0][1], item[0][0])):
        bet = bet.update(answer.tally or Tally())
    return bet.log_e


def _blocks(mine: dict[_Key, Answer], others: dict[_Key, Answer]) -> list[tuple[Answers, Answers]]:
    """For each prompt as many answers of either side, the first `MAX_TESTED` in all."""
    blocks: list[tuple[Answers, Answers]] = []
    room = MAX_TESTED
    for prompt in dict.fromkeys(prompt for prompt, _ in mine):
        one = [answer.token_ids for key, answer in sorted(mine.items()) if key[0] == prompt]
        other = [answer.token_ids for key, answer in sorted(others.items()) if key[0] == prompt]
        count = min(len(one), len(other), room // 2)
        if count:
            blocks.append((one[:count], other[:count]))
            room -= 2 * count
    return blocks
