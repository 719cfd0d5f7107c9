"""How long answers take, and how many tokens come in a second, by mode and by how many are asked at once."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

import msgspec
import numpy as np

from gateway.experiments.askers import Asker
from gateway.experiments.prompts import Prompt, seed_of
from gateway.types import Sampling

SHARES = (50, 90, 99)
"""Percentiles."""
_MAX_ERRORS = 3


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. Seconds from when it was asked for."""

    prompt: str
    mode: str
    tokens: int
    first: float | None
    """Its first piece; None: it had none."""
    total: float
    gaps: tuple[float, ...]
    """Between its pieces; one may be several tokens."""
    error: str = ""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """All answers of one arm at one number at once: kept whole, for its rate is that of all."""

    arm: str
    concurrency: int
    seconds: float
    timings: tuple[Timing, ...]
    model: str = ""
    """Fingerprint of what decoded, or the model's name at a gateway."""

    @property
    def key(self) -> tuple[str, int]:
        """What it is told by."""
        return self.arm, self.concurrency


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of some seconds; None of none."""

    p50: float | None
    p90: float | None
    p99: float | None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One load, summed up."""

    arm: str
    concurrency: int
    answers: int
    failed: int
    modes: Mapping[str, int]
    """Mode that was decided or ran → answers."""
    first_token: Percentiles
    inter_token: Percentiles
    """Seconds a token after the first, answer by answer."""
    gap: Percentiles
    """Between two pieces of an answer."""
    total: Percentiles
    tokens_per_second: float
    """Of all answers together."""
    requests_per_second: float
    errors: tuple[str, ...]
    """The most frequent ones."""


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured."""

    target: str
    model: str
    planned: int
    """Fewer lines than were planned: the run was interrupted."""
    lines: tuple[Line, ...]


async def sweep(
    asker: Asker,
    prompts: Sequence[Prompt],
    loads: Sequence[tuple[str, int]],
    sampling: Sampling,
    *,
    requests: int,
    seed: int,
    done: Callable[[], None],
) -> AsyncGenerator[Load, None]:
    """Measure each load, an arm and a number at once, with ``requests`` answers.

    One more answer of each arm is made before its first load and not counted. ``done`` is called
    after each answer.
    """
    warm: set[str] = set()
    for arm, concurrency in loads:
        if arm not in warm:
            await _ask(asker, prompts[0], arm, _seeded(sampling, seed, arm, "warm", 0))
            warm.add(arm)
        todo = [
            (prompts[number % len(prompts)], _seeded(sampling, seed, arm, concurrency, number))
            for number in range(requests)
        ]
        began = time.perf_counter()
        timings = await _together(asker, arm, todo, concurrency, done)
        seconds = time.perf_counter() - began
        yield Load(arm=arm, concurrency=concurrency, seconds=seconds, timings=tuple(timings))


def summed_up(load: Load) -> Line:
    """A load's percentiles and rates, over the answers that did not fail."""
    good = [timing for timing in load.timings if not timing.error]
    errors = Counter(timing.error for timing in load.timings if timing.error)
    tokens = sum(timing.tokens for timing in good)
    return Line(
        arm=load.arm,
        concurrency=load.concurrency,
        answers=len(good),
        failed=len(load.timings) - len(good),
        modes=dict(Counter(timing.mode or "unknown" for timing in good)),
        first_token=percentiles([t.first for t in good if t.first is not None]),
        inter_token=percentiles(
            [
                (t.total - t.first) / (t.tokens - 1)
                for t in good
                if t.first is not None and t.tokens > 1
            ]
        ),
        gap=percentiles([gap for t in good for gap in t.gaps]),
        total=percentiles([t.total for t in good]),
        tokens_per_second=tokens / max(load.seconds, 1e-9),
        requests_per_second=len(good) / max(load.seconds, 1e-9),
        errors=tuple(f"{count} times: {error}" for error, count in errors.most_common(_MAX_ERRORS)),
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    """Between two values their mixture, as Hyndman and Fan's definition 7 has it (1996)."""
    if not values:
        return Percentiles(p50=None, p90=None, p99=None)
    p50, p90, p99 = (float(found) for found in np.percentile(values, SHARES))
    return Percentiles(p50=p50, p90=p90, p99=p99)


async def _together(
    asker: Asker,
    arm: str,
    todo: Sequence[tuple[Prompt, Sampling]],
    concurrency: int,
    done: Callable[[], None],
) -> list[Timing]:
    """All answers, ``concurrency`` at any time until too few are left."""
    waiting = iter(todo)
    found: list[Timing] = []

    async def client() -> None:
        for prompt, sampling in waiting:
            found.append(await _ask(asker, prompt, arm, sampling))
            done()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(todo))):
            group.create_task(client())
    return found


async def _ask(asker: Asker, prompt: Prompt, arm: str, sampling: Sampling) -> Timing:
    began = time.perf_counter()
    arrivals: list[float] = []
    mode = error = ""
    tokens = 0
    async for seen in asker.ask(prompt, arm, sampling):
        if seen.piece:
            arrivals.append(time.perf_counter() - began)
        mode, error, tokens = seen.mode or mode, seen.error or error, seen.tokens or tokens
    total = time.perf_counter() - began
    return Timing(
        prompt=prompt.id,
        mode=mode,
        tokens=tokens,
        first=arrivals[0] if arrivals else None,
        total=total,
        gaps=tuple(b - a for a, b in itertools.pairwise(arrivals)),
        error=error,
    )


def _seeded(sampling: Sampling, *parts: object) -> Sampling:
    return msgspec.structs.replace(sampling, seed=seed_of(*parts))
