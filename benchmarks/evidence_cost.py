"""What the evidence costs: the same answers with the meter and without, in turns.

The tokens are the same, so the ratio of the seconds is that of a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.arms import modes
from benchmarks.environment import describe
from benchmarks.prompts import read
from benchmarks.runs import SPECULATIVE, STANDARD
from benchmarks.throughput import decode_all, mixture, tasks_of
from decoders import load
from decoders.hedges import hedge_ids
from decoders.loader import LoadedModel
from decoders.meter import LawMeter, NoMeter

HERE = Path(__file__).parent
PROMPTS = HERE / "prompts.jsonl"
RESULTS = HERE / "results" / "evidence-cost.json"


@dataclass(frozen=True)
class Cost:
    """One setting, over its rounds."""

    rows: str
    temperature: float
    concurrency: int
    ratios: Sequence[float]
    """Seconds with the meter over seconds without, a number a round."""

    @property
    def added(self) -> float:
        """Median share by which a step takes longer."""
        return statistics.median(self.ratios) - 1


def main() -> int:
    """Measure, print and keep the figures; 1 where an answer differs."""
    options = _options()
    loaded = load(options.model, dtype="float32", device="cpu", num_slots=8)
    try:
        found = list(_measure(loaded, options))
    except ValueError as error:
        Console(stderr=True).print(f"[red]{error}[/]")
        return 1
    report = {
        "environment": describe("cpu"),
        "options": {"requests": options.requests, "tokens": options.tokens},
        "costs": [asdict(cost) for cost in found],
    }
    RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    RESULTS.with_suffix(".md").write_text(table(report) + "\n", encoding="utf-8")
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
        least, most = min(cost.ratios) - 1, max(cost.ratios) - 1
        lines.append(
            f"| {cost.rows} | {cost.temperature:g} | {cost.concurrency} | {cost.added:+.1%} "
            f"| {least:+.1%}, {most:+.1%} |"
        )
    where = report["environment"]
    rounds = len(report["costs"][0]["ratios"])
    lines += [
        "",
        f"{where['processor']}, {where['cores']} cores, {where['date']}; {rounds} rounds.",
    ]
    return "\n".join(lines)


def _measure(loaded: LoadedModel, options: argparse.Namespace) -> Iterator[Cost]:
    pieces = (
        loaded.tokenizer.token_bytes(i).decode(errors="replace")
        for i in range(loaded.model.vocab_size)
    )
    meters = {True: LawMeter(hedge_ids(pieces)), False: NoMeter()}
    prompts = mixture(read(PROMPTS), options.requests)
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
        for number in range(options.rounds + 1):
            seconds, outputs = {}, {}
            for on in (True, False) if number % 2 else (False, True):
                row, outputs[on] = decode_all(loaded, chosen[rows], tasks, width, meters[on])
                seconds[on] = row.seconds
            if outputs[True] != outputs[False]:
                raise ValueError(f"{rows} at {temperature:g}: the meter changed an answer")
            if number:  # the first round warms up
                ratios.append(round(seconds[True] / seconds[False], 4))
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
