"""What the evidence costs: the time inside the meter beside that of the rest of all steps.

Both are of the same steps, so that what else the machine does meets them alike. Answers with the meter
and without must be equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from torch import Tensor

from benchmarks.arms import modes
from benchmarks.environment import describe
from benchmarks.keeping import keep
from benchmarks.prompts import read
from benchmarks.runs import SPECULATIVE, STANDARD
from benchmarks.throughput import decode_all, mixture, tasks_of
from decoders import load
from decoders.hedges import hedge_ids
from decoders.loader import LoadedModel
from decoders.meter import LawMeter, Meter, NoMeter
from decoders.verifiers.base import DraftedRow, Verdict, Verifier

HERE = Path(__file__).parent
PROMPTS = HERE / "prompts.jsonl"
SHORT = 200
"""Characters."""
RESULTS = HERE / "results" / "evidence-cost.json"


@dataclass(frozen=True)
class Cost:
    """One setting, over its rounds."""

    rows: str
    temperature: float
    concurrency: int
    ratios: Sequence[float]
    """Seconds inside the meter over all others, a number a round."""

    @property
    def added(self) -> float:
        """Median share by which a step takes longer."""
        return statistics.median(self.ratios)


class _Timed:
    """A meter, and the seconds that it has taken."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.seconds = 0.0

    def measure(
        self,
        verifier: Verifier,
        scores: Tensor,
        rows: Sequence[DraftedRow],
        verdicts: Sequence[Verdict],
    ) -> list[Tensor]:
        """What the meter says."""
        started = time.perf_counter()
        try:
            return self._meter.measure(verifier, scores, rows, verdicts)
        finally:
            self.seconds += time.perf_counter() - started


def main() -> int:
    """Measure, print and keep the figures; 1 where an answer differs."""
    options = _options()
    loaded = load(options.model, dtype="float32", device="cpu", num_slots=8)
    report: dict[str, Any] = {
        "environment": describe("cpu"),
        "options": {"requests": options.requests, "tokens": options.tokens},
        "costs": [],
    }
    try:
        for cost in _measure(loaded, options):
            report["costs"].append(asdict(cost))
            keep(RESULTS, report, table(report))
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted: these are the settings that were measured")
    except ValueError as error:
        Console(stderr=True).print(f"[red]{error}[/]")
        return 1
    print(json.dumps(report) if options.json else table(report))
    return 0


def table(report: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [
        "| rows | temperature | at once | added (median) | least, most |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in report["costs"]:
        cost = Cost(**row)
        least, most = min(cost.ratios), max(cost.ratios)
        lines.append(
            f"| {cost.rows} | {cost.temperature:g} | {cost.concurrency} | {cost.added:+.1%} "
            f"| {least:+.1%}, {most:+.1%} |"
        )
    where = report["environment"]
    rounds = len(report["costs"][0]["ratios"]) if report["costs"] else 0
    lines += [
        "",
        f"{where['processor']}, {where['cores']} cores, {where['date']}; {rounds} rounds.",
    ]
    return "\n".join(lines)


def _measure(loaded: LoadedModel, options: argparse.Namespace) -> Iterator[Cost]:
    meter = _Timed(LawMeter(hedge_ids(loaded.pieces)))
    # Short ones: a prefill measures nothing, and would hide what a step takes.
    short = [prompt for prompt in read(PROMPTS) if len(prompt.turns[0]) < SHORT]
    prompts = mixture(short, options.requests)
    chosen = modes()
    settings = [
        (rows, temperature, width)
        for rows in (STANDARD, SPECULATIVE)
        for temperature in (0.0, 0.8)
        for width in (1, 8)
    ]
    for rows, temperature, width in track(settings, "measuring", console=Console(stderr=True)):
        tasks = tasks_of(loaded, prompts, temperature, options.tokens)
        ratios = []
        _, expected = decode_all(loaded, chosen[rows], tasks, width, NoMeter())
        for _ in range(options.rounds):
            meter.seconds = 0.0
            row, outputs = decode_all(loaded, chosen[rows], tasks, width, meter)
            if outputs != expected:
                raise ValueError(f"{rows} at {temperature:g}: the meter changed an answer")
            ratios.append(round(meter.seconds / (row.seconds - meter.seconds), 4))
        yield Cost(rows, temperature, width, ratios)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo", help="what `draftgate serve` takes")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
