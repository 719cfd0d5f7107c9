"""What the meter costs: the same answers with it and without, in turn, in one process.

Only ratios within one run mean something: a shared machine speeds up and slows down by half.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.prompts import PromptError, read
from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.hedges import hedge_ids
from decoders.loader import LoadedModel, load
from decoders.meter import LawMeter
from decoders.models.base import ModelError
from decoders.modes import Speculative
from decoders.params import SamplingParams
from decoders.request import Request


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=1, help="decoded at a time")
    parser.add_argument("--rounds", type=int, default=20, help="of both, in turn")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    try:
        prompts = [prompt.turns[0] for prompt in read(Path(__file__).parent / "prompts.jsonl")]
        loaded = load(options.model, device=options.device, num_slots=options.rows)
    except (PromptError, ModelError, ValueError) as error:
        raise SystemExit(str(error)) from None
    ids = range(loaded.model.vocab_size)
    pieces = (loaded.tokenizer.token_bytes(i).decode(errors="replace") for i in ids)
    engines = {
        "off": Engine(loaded.model, loaded.tokenizer),
        "on": Engine(loaded.model, loaded.tokenizer, meter=LawMeter(hedge_ids(pieces))),
    }
    ratios = []
    per_step: dict[str, list[float]] = {name: [] for name in engines}
    console = Console(stderr=True)
    for number in track(range(options.rounds + 1), console=console, disable=options.json):
        names = list(engines) if number % 2 else list(engines)[::-1]
        found = {
            name: _milliseconds_a_step(engines[name], loaded, prompts, number, options)
            for name in names
        }
        if number:  # the first is for caches to fill
            ratios.append(found["on"] / found["off"] - 1)
            for name, value in found.items():
                per_step[name].append(value)
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    results = {
        "rows": options.rows,
        "rounds": len(ratios),
        "ms_per_step": {name: statistics.median(values) for name, values in per_step.items()},
        "added": {"median": quartiles[1], "lower": quartiles[0], "upper": quartiles[2]},
    }
    if options.json:
        print(json.dumps(results, indent=1))
        return
    off, on = results["ms_per_step"]["off"], results["ms_per_step"]["on"]
    print(f"{options.rows} rows, {len(ratios)} rounds: {off:.2f} ms a step without, {on:.2f} with;")
    low, median, high = (f"{value:+.1%}" for value in quartiles)
    print(f"round by round {median} (half of the rounds between {low} and {high})")


def _milliseconds_a_step(
    engine: Engine,
    loaded: LoadedModel,
    prompts: list[str],
    number: int,
    options: argparse.Namespace,
) -> float:
    """Of the steps behind the prompts; the same requests for the same ``number``."""
    source = SuffixDraftSource()
    tickets = engine.submit(
        [
            Request(
                loaded.tokenizer.encode_chat(
                    [
                        {
                            "role": "user",
                            "content": prompts[(number * options.rows + i) % len(prompts)],
                        }
                    ]
                ),
                SamplingParams(
                    temperature=options.temperature,
                    max_tokens=options.max_tokens,
                    ignore_eos=True,
                    seed=number * options.rows + i,
                ),
                Speculative(source, 4),
            )
            for i in range(options.rows)
        ]
    )
    while not all(ticket.stats.num_output_tokens for ticket in tickets):
        engine.step()
    started, steps = time.perf_counter(), 0
    while not all(ticket.done.is_set() for ticket in tickets):
        engine.step()
        steps += 1
    return (time.perf_counter() - started) * 1000 / max(steps, 1)


if __name__ == "__main__":
    main()
