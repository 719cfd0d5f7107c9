"""Chooses dtype and threads by what is fastest here, once for each machine and model.

Runs what the engine runs, before the engine does. The first candidate of a choice is the safe one:
another must be faster by a margin, measured while nothing else disturbed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from decoders.loader import LoadedModel, Progress, fetch, fingerprint, load, measurements
from decoders.measurements import MAX_SPREAD, Form, machine, num_cpus, spread
from decoders.models.base import LanguageModel, Row

FASTEST = "fastest"
"""A dtype that is chosen by measuring."""
_MARGIN = 0.95
_ROUNDS = 7
_SECONDS = 4.0
_CONTEXT = 64
"""Tokens before those that are timed."""


@dataclass(frozen=True)
class Choice:
    """One of some candidates, and the times that speak for it."""

    kind: str
    value: str
    seconds: Mapping[str, tuple[float, float]]
    """By candidate: a decode step of one row, and one of all rows."""
    spread: float = field(default=0.0, compare=False)
    """How much the measurement was disturbed: see `decoders.measurements.spread`."""

    def __str__(self) -> str:
        """For a line of a log: ``dtype bfloat16 (float32 29.1 and 58.0 ms, bfloat16 …)``."""
        times = ", ".join(
            f"{name} {1e3 * one:.1f} and {1e3 * many:.1f} ms"
            for name, (one, many) in self.seconds.items()
        )
        return f"{self.kind} {self.value} ({times})" if times else f"{self.kind} {self.value}"


Step = Callable[[int], None]
"""Runs one decode step of so many rows."""


def choose(
    kind: str,
    candidates: Mapping[str, Step],
    max_rows: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """The candidate with the least time, one row and all rows weighing alike; the first if in doubt.

    Rounds are interleaved, so that a slow moment falls on all candidates.
    """
    samples: dict[tuple[str, int], list[float]] = {}
    end = clock() + _SECONDS
    for done in range(_ROUNDS + 1):
        for name, step in candidates.items():
            for rows in (1, max_rows):
                start = clock()
                step(rows)
                # The first round pays for what later ones find ready.
                if done:
                    samples.setdefault((name, rows), []).append(clock() - start)
        if done and clock() > end:
            break
    seconds = {name: (min(samples[name, 1]), min(samples[name, max_rows])) for name in candidates}
    disturbed = spread(samples.values())
    first = next(iter(candidates))
    best = min(seconds, key=lambda name: math.prod(seconds[name]))
    gain = math.sqrt(math.prod(seconds[best]) / math.prod(seconds[first]))
    value = best if disturbed <= MAX_SPREAD and gain < _MARGIN else first
    return Choice(kind, value, seconds, disturbed)


def tune_threads(loaded: LoadedModel, *, cache_dir: Path | None = None) -> Choice:
    """Set the number of threads that computes ``loaded`` fastest; torch's own choice if in doubt.

    Must not be called while an engine uses the model.
    """
    candidates = thread_counts(torch.get_num_threads(), num_cpus())
    if len(candidates) == 1 or not _on_cpu(loaded.model):
        return Choice("threads", str(candidates[0]), {})

    def step(threads: int) -> Step:
        def run(rows: int) -> None:
            torch.set_num_threads(threads)
            _decode(loaded.model, rows)

        return run

    key = {
        "machine": machine(),
        "model": loaded.fingerprint,
        "num_slots": str(loaded.model.num_slots),
        "candidates": str(candidates),
    }
    choice = measurements(cache_dir).load_or_measure(
        CHOICE,
        {"choice": "threads", **key},
        lambda: choose("threads", {str(n): step(n) for n in candidates}, loaded.model.num_slots),
    )
    torch.set_num_threads(int(choice.value))
    return choice


def thread_counts(default: int, cpus: int) -> list[int]:
    """The numbers to try, torch's own first; it alone where there is next to nothing to choose from."""
    if cpus <= 2:
        return [default]
    return [default, *sorted({1, cpus // 4 or 1, cpus // 2, cpus} - {default})]


def load_fastest(
    spec: str,
    *,
    device: str = "auto",
    num_slots: int = 8,
    max_length: int = 4096,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> tuple[LoadedModel, Choice]:
    """`load` with the dtype that decodes fastest here; float32 if in doubt, ``auto`` off the CPU.

    While it measures, the model is in memory twice. Raises ModelError like `load`.
    """
    source = fetch(spec, cache_dir=cache_dir, progress=progress)
    loaded: dict[str, LoadedModel] = {}

    def get(dtype: str) -> LoadedModel:
        if dtype not in loaded:
            loaded[dtype] = load(
                spec,
                dtype=dtype,
                device=device,
                num_slots=num_slots,
                max_length=max_length,
                cache_dir=cache_dir,
            )
        return loaded[dtype]

    if device not in ("auto", "cpu") or (device == "auto" and torch.cuda.is_available()):
        model = get("auto")
        return model, Choice("dtype", model.dtype, {})

    def take() -> Choice:
        models = {dtype: get(dtype).model for dtype in ("float32", "bfloat16")}
        steps = {dtype: _step(model) for dtype, model in models.items()}
        return choose("dtype", steps, num_slots)

    key = {
        "machine": machine(),
        "model": fingerprint(source, torch.float32),
        "threads": str(torch.get_num_threads()),
        "num_slots": str(num_slots),
    }
    choice = measurements(cache_dir).load_or_measure(CHOICE, {"choice": "dtype", **key}, take)
    return get(choice.value), choice


def _step(model: LanguageModel) -> Step:
    return lambda rows: _decode(model, rows)


def _decode(model: LanguageModel, rows: int) -> None:
    start = min(_CONTEXT, model.max_length - 1)
    logits = model.forward([Row(slot, start, (0,), 1) for slot in range(rows)])
    logits.argmax(dim=-1).tolist()  # waits for the device


def _on_cpu(model: LanguageModel) -> bool:
    return model.forward([Row(0, 0, (0,), 1)]).device.type == "cpu"


def _written(choice: Choice) -> object:
    seconds = {name: list(times) for name, times in choice.seconds.items()}
    return {"kind": choice.kind, "value": choice.value, "seconds": seconds}


def _read(document: object) -> Choice:
    if not isinstance(document, dict):
        raise TypeError("not a choice")
    seconds = {
        str(name): (float(one), float(many)) for name, (one, many) in document["seconds"].items()
    }
    if document["value"] not in seconds:
        raise ValueError("the choice is none of its candidates")
    return Choice(str(document["kind"]), str(document["value"]), seconds)


CHOICE: Form[Choice] = Form("choice", _written, _read, lambda choice: choice.spread)
"""How a choice is kept."""
