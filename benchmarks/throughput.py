"""Total tokens per second when the same requests come one, four, … at a time."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.arms import request
from benchmarks.measure import Task
from benchmarks.prompts import Prompt
from benchmarks.runs import Throughput
from decoders import CostModel, Engine, load_profile
from decoders.loader import LoadedModel
from decoders.meter import Meter
from decoders.modes import Mode
from gateway.experiments.guard import Guard


def mixture(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """At most ``count`` of ``prompts``, spread evenly over them."""
    count = min(count, len(prompts))
    return [prompts[i * len(prompts) // count] for i in range(count)]


def measure_throughput(
    loaded: LoadedModel,
    prompts: Sequence[Prompt],
    modes: Mapping[str, Mode],
    *,
    max_tokens: int,
    temperatures: Sequence[float],
    concurrency: Sequence[int],
    rounds: int,
    guard: Guard,
    done: Callable[[], None],
) -> list[Throughput]:
    """The first turns of ``prompts``, all rows in the first of ``modes``, then all in the next, ….

    ``modes`` are those of arms by name, standard mode first: its tokens are what the others are held
    to. All are measured next to each other for each temperature and number at once, in rotating
    order; what was disturbed is measured once more. Interrupted, it returns what it has.
    """
    found: list[Throughput] = []
    expected: dict[float, list[list[int]]] = {}
    try:
        tasks_at = {each: tasks_of(loaded, prompts, each, max_tokens) for each in temperatures}
        for number in range(rounds):
            for temperature, tasks in tasks_at.items():
                for at, width in enumerate(concurrency):
                    # Standard mode is first where there is nothing yet to hold the others to.
                    shift = (number + at) % len(modes)
                    names = [*modes][shift:] + [*modes][:shift]
                    for attempt in range(2):
                        before = guard.read()
                        rows = []
                        for name in names:
                            row, outputs = decode_all(loaded, modes[name], tasks, width)
                            wanted = expected.setdefault(temperature, outputs)
                            equal = sum(a == b for a, b in zip(outputs, wanted, strict=True))
                            rows.append(replace(row, rows=name, round=number, equal=equal))
                        disturbed = guard.disturbed(before, guard.read())
                        if attempt == 1 or not disturbed:
                            found += [replace(row, disturbed=disturbed) for row in rows]
                            break
                    done()
    except KeyboardInterrupt:
        pass  # what was measured before, one at a time, is worth a report
    return found


def tasks_of(
    loaded: LoadedModel, prompts: Sequence[Prompt], temperature: float, max_tokens: int
) -> list[Task]:
    """The first turns of ``prompts``, each with a seed of its own."""
    return [
        Task(
            loaded.tokenizer.encode_chat([{"role": "user", "content": prompt.turns[0]}]),
            temperature,
            zlib.crc32(prompt.id.encode()),
            max_tokens,
            prompt.group,
        )
        for prompt in prompts
    ]


def decode_all(
    loaded: LoadedModel,
    mode: Mode,
    tasks: Sequence[Task],
    width: int,
    meter: Meter | None = None,
) -> tuple[Throughput, list[list[int]]]:
    """All answers, with never more than ``width`` requests in the engine, and their counts.

    ``meter`` is the engine's: what is emitted is measured by it.
    """
    cost = CostModel(load_profile(loaded))
    engine = Engine(loaded.model, loaded.tokenizer, cost=cost, meter=meter)
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
    outputs = [list(ticket.sequence.output_ids) for ticket in tickets]
    row = Throughput(
        rows="",
        concurrency=width,
        round=0,
        requests=len(outputs),
        tokens=sum(map(len, outputs)),
        seconds=round(seconds, 4),
        equal=0,
        temperature=tasks[0].temperature,
        steps=sum(ticket.stats.num_steps for ticket in tickets),
        proposed=sum(ticket.stats.num_draft_tokens for ticket in tickets),
        accepted=sum(ticket.stats.num_accepted_tokens for ticket in tickets),
    )
    return row, outputs
