"""Total tokens per second when the same requests come one, four, … at a time."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.arms import SPECULATIVE, modes, request
from benchmarks.guard import Guard
from benchmarks.measure import Task
from benchmarks.prompts import Prompt
from benchmarks.runs import STANDARD, Throughput
from decoders import CostModel, Engine, load_profile
from decoders.loader import LoadedModel

NUM_REQUESTS = 16


def mixture(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Sixteen of ``prompts``, spread evenly over them."""
    count = min(NUM_REQUESTS, len(prompts))
    return [prompts[i * len(prompts) // count] for i in range(count)]


def measure_throughput(
    loaded: LoadedModel,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    concurrency: Sequence[int],
    rounds: int,
    guard: Guard,
    done: Callable[[], None],
) -> list[Throughput]:
    """The first turns of ``prompts`` at temperature 0: all rows standard, then all speculative.

    Both are measured next to each other for each number at once. A pair that was disturbed is
    measured once more.
    """
    tasks = [
        Task(
            loaded.tokenizer.encode_chat([{"role": "user", "content": prompt.turns[0]}]),
            0.0,
            zlib.crc32(prompt.id.encode()),
            max_tokens,
        )
        for prompt in prompts
    ]
    expected: list[list[int]] = []
    found: list[Throughput] = []
    for number in range(rounds):
        for width in concurrency:
            for attempt in range(2):
                before = guard.read()
                pair = []
                for name in (STANDARD, SPECULATIVE) if number % 2 == 0 else (SPECULATIVE, STANDARD):
                    outputs, seconds = _decode(loaded, name, tasks, width)
                    expected = expected or outputs
                    pair.append(_row(name, width, number, outputs, expected, seconds))
                disturbed = guard.disturbed(before, guard.read())
                if attempt == 1 or not disturbed:
                    found += [replace(row, disturbed=disturbed) for row in pair]
                    break
            done()
    return found


def _row(
    name: str,
    width: int,
    number: int,
    outputs: Sequence[list[int]],
    expected: Sequence[list[int]],
    seconds: float,
) -> Throughput:
    return Throughput(
        rows=name,
        concurrency=width,
        round=number,
        requests=len(outputs),
        tokens=sum(map(len, outputs)),
        seconds=round(seconds, 4),
        equal=sum(a == b for a, b in zip(outputs, expected, strict=True)),
    )


def _decode(
    loaded: LoadedModel, name: str, tasks: Sequence[Task], width: int
) -> tuple[list[list[int]], float]:
    """All answers, with never more than ``width`` requests in the engine, and the seconds."""
    engine = Engine(loaded.model, loaded.tokenizer, cost=CostModel(load_profile(loaded)))
    mode = modes()[name]
    waiting = [request(task, mode) for task in tasks]
    tickets = []
    start = time.perf_counter()
    while True:
        room = width - engine.num_running - engine.num_waiting
        if waiting and room > 0:
            tickets += engine.submit(waiting[:room])
            del waiting[:room]
        if not engine.step() and not waiting:
            break
    seconds = time.perf_counter() - start
    for ticket in tickets:
        if ticket.error is not None:
            raise RuntimeError(ticket.error)
    return [list(ticket.sequence.output_ids) for ticket in tickets], seconds
