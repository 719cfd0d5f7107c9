"""From raw rows to figures. Only rows count whose text is right and whose time is their own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.runs import LOOKUP, STANDARD, Measurement, Run, Throughput

ALL = "all"
MIN_TOKENS = 8
"""Of a shorter answer the time is the prefill's."""


@dataclass(frozen=True)
class Spread:
    """Median, and the values that a tenth of the prompts lie below and above."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Figure:
    """One arm on one group at one temperature. None where there is nothing to compare with."""

    group: str
    temperature: float
    arm: str
    prompts: int
    comparable: bool
    """Whether the text could be held against standard mode's."""
    tokens_per_second: float
    decode_tokens_per_second: float
    ratio: Spread
    """Tokens per second over those of standard mode, prompt by prompt."""
    decode_ratio: float
    """The same without the prefill; median."""
    ratio_to_lookup: float | None
    mean_acceptance_length: float
    acceptance_rate: float | None


@dataclass(frozen=True)
class Exclusions:
    """Answers that do not count, one temperature and arm; a prompt stands under the first reason."""

    temperature: float
    arm: str
    answers: int
    different: tuple[str, ...]
    loops: tuple[str, ...]
    short: tuple[str, ...]
    disturbed: tuple[str, ...]


@dataclass(frozen=True)
class Rate:
    """One arm on a mixture, ``concurrency`` at a time; medians over the rounds."""

    temperature: float
    concurrency: int
    arm: str
    tokens_per_second: float
    ratio: float
    """Over standard mode with as many at once."""
    mean_acceptance_length: float
    acceptance_rate: float | None
    equal: int
    requests: int
    disturbed: bool


def counts(run: Run) -> bool:
    """Whether this answer's speed says anything."""
    return why_not(run) is None


def why_not(run: Run) -> str | None:
    """The first reason why an answer does not count; None where it does."""
    if run.equal is False:
        return "different"
    if run.loop:
        return "loops"
    if run.tokens < MIN_TOKENS:
        return "short"
    return "disturbed" if run.disturbed else None


def figures(measurement: Measurement) -> list[Figure]:
    """For every temperature, group (and all of them) and arm that has an answer that counts."""
    runs = [run for run in measurement.runs if counts(run)]
    groups = list(dict.fromkeys(run.group for run in measurement.runs))
    found = []
    for temperature in dict.fromkeys(run.temperature for run in measurement.runs):
        for group in (ALL, *groups):
            mine = [
                run for run in runs if run.temperature == temperature and group in (ALL, run.group)
            ]
            for arm in dict.fromkeys(run.arm for run in measurement.runs):
                figure = _figure(group, temperature, arm, mine)
                if figure is not None:
                    found.append(figure)
    return found


def exclusions(measurement: Measurement) -> list[Exclusions]:
    """What does not count and why, for every temperature and arm."""
    found = []
    for temperature, arm in dict.fromkeys((run.temperature, run.arm) for run in measurement.runs):
        mine = [run for run in measurement.runs if (run.temperature, run.arm) == (temperature, arm)]
        reasons = {
            reason: tuple(dict.fromkeys(run.prompt for run in mine if why_not(run) == reason))
            for reason in ("different", "loops", "short", "disturbed")
        }
        answers = len({run.prompt for run in mine})
        found.append(Exclusions(temperature, arm, answers, **reasons))
    return found


def rates(rows: Sequence[Throughput]) -> list[Rate]:
    """One line for each temperature, number at once and arm."""
    by_line: dict[tuple[float, int, str], list[Throughput]] = {}
    for row in rows:
        by_line.setdefault((row.temperature, row.concurrency, row.rows), []).append(row)
    speed = {
        line: statistics.median(row.tokens / row.seconds for row in mine)
        for line, mine in by_line.items()
    }
    arms = list(dict.fromkeys((STANDARD, *(row.rows for row in rows))))
    found = []
    for temperature, width, arm in sorted(
        by_line, key=lambda line: (*line[:2], arms.index(line[2]))
    ):
        line = (temperature, width, arm)
        mine = by_line[line]
        steps, proposed = sum(row.steps for row in mine), sum(row.proposed for row in mine)
        found.append(
            Rate(
                temperature,
                width,
                arm,
                speed[line],
                speed[line] / speed[temperature, width, STANDARD],
                sum(row.tokens for row in mine) / steps if steps else 0.0,
                sum(row.accepted for row in mine) / proposed if proposed else None,
                min(row.equal for row in mine),
                mine[0].requests,
                any(row.disturbed for row in mine),
            )
        )
    return found


def _figure(group: str, temperature: float, arm: str, runs: Sequence[Run]) -> Figure | None:
    """None where no prompt has an answer that counts both in this arm and in standard mode."""
    mine = [run for run in runs if run.arm == arm]
    whole = _by_prompt(mine, _whole)
    standard = _by_prompt((run for run in runs if run.arm == STANDARD), _whole)
    lookup = _by_prompt((run for run in runs if run.arm == LOOKUP), _whole)
    ratios = _ratios(whole, standard)
    if not ratios:
        return None
    to_lookup = _ratios(whole, lookup)
    both = [run for run in mine if run.prompt in standard]
    decode = _by_prompt(both, _decode)
    standard_decode = _by_prompt((run for run in runs if run.arm == STANDARD), _decode)
    proposed = sum(run.proposed for run in both)
    return Figure(
        group=group,
        temperature=temperature,
        arm=arm,
        prompts=len(ratios),
        comparable=all(run.equal is not None for run in both),
        tokens_per_second=statistics.median(whole[name] for name in whole if name in standard),
        decode_tokens_per_second=statistics.median(decode.values()),
        ratio=_spread(ratios),
        decode_ratio=statistics.median(_ratios(decode, standard_decode)),
        ratio_to_lookup=statistics.median(to_lookup) if to_lookup else None,
        mean_acceptance_length=sum(run.tokens for run in both) / sum(run.steps for run in both),
        acceptance_rate=sum(run.accepted for run in both) / proposed if proposed else None,
    )


def _whole(run: Run) -> float:
    return run.tokens_per_second


def _decode(run: Run) -> float:
    return run.decode_tokens_per_second


def _by_prompt(runs: Iterable[Run], speed: Callable[[Run], float]) -> dict[str, float]:
    """Prompt → median over the rounds."""
    values: dict[str, list[float]] = {}
    for run in runs:
        values.setdefault(run.prompt, []).append(speed(run))
    return {prompt: statistics.median(rounds) for prompt, rounds in values.items()}


def _ratios(mine: dict[str, float], others: dict[str, float]) -> list[float]:
    return [value / others[prompt] for prompt, value in mine.items() if prompt in others]


def _spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), tenths[0], tenths[-1])
