"""Decoding speed on one machine: our three modes beside transformers' own ``generate``.

All arms run in one process on the same weights, interleaved prompt by prompt in an order that
rotates with each round, so that a machine that speeds up or slows down does so for all of them.
Times are end to end, prefill included. A row counts only where the tokens are equal to those of our
standard mode and the text is no degenerate loop, because repetition makes any speculation look good.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import Progress
from transformers import AutoModelForCausalLM, PreTrainedModel

from decoders import (
    CostModel,
    Engine,
    Hybrid,
    Request,
    SamplingParams,
    Speculative,
    Standard,
    SuffixDraftSource,
    load,
    load_profile,
)
from decoders.gates import StandardFirst
from decoders.loader import LoadedModel, fetch
from decoders.modes import Mode

HERE = Path(__file__).parent
CONCURRENCY = (1, 4, 8)


@dataclass(frozen=True)
class Run:
    """One answer of one arm."""

    arm: str
    kind: str
    prompt: str
    round: int
    seconds: float
    token_ids: tuple[int, ...]
    accept_length: float


def main() -> None:
    """Measure, print the table, and write results/NAME.json and NAME.md."""
    options = _options()
    loaded = load(options.model, dtype=options.dtype, device=options.device, max_length=2048)
    plain = AutoModelForCausalLM.from_pretrained(
        fetch(options.model), dtype=getattr(torch, options.dtype)
    ).to(options.device)
    prompts = [json.loads(line) for line in options.prompts.read_text().splitlines()]
    console = Console()
    with Progress(console=console) as progress:
        runs = _single(loaded, plain, prompts, options, progress)
        throughput = _throughput(loaded, prompts, options, progress)
    report = {
        "machine": _machine(options),
        "batch_1": _summary(runs),
        "throughput": throughput,
        "answers": _gate(runs),
    }
    text = _markdown(report)
    console.print(text, markup=False)
    target = options.out or HERE / "results" / f"decoding-{options.device}-{options.dtype}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    target.with_suffix(".md").write_text(text + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.jsonl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, help="without a suffix; default: results/…")
    return parser.parse_args()


def _modes() -> dict[str, Mode]:
    source = SuffixDraftSource()
    return {
        "standard": Standard(),
        "speculative": Speculative(source, 8),
        "hybrid": Hybrid(source, [StandardFirst(10)], 8),
    }


def _single(
    loaded: LoadedModel,
    plain: PreTrainedModel,
    prompts: Sequence[dict[str, str]],
    options: argparse.Namespace,
    progress: Progress,
) -> list[Run]:
    engine = Engine(loaded.model, loaded.tokenizer, cost=CostModel(load_profile(loaded)))
    arms: dict[str, Callable[[list[int]], tuple[tuple[int, ...], float]]] = {
        "generate": lambda ids: _generate(plain, ids, options),
        "generate + prompt lookup": lambda ids: _generate(
            plain, ids, options, prompt_lookup_num_tokens=8
        ),
    }
    for name, mode in _modes().items():
        arms[name] = lambda ids, mode=mode: _decode(engine, ids, mode, options)  # type: ignore[misc]
    names = list(arms)
    task = progress.add_task("batch 1", total=options.rounds * len(prompts) * len(names))
    warm = loaded.tokenizer.encode("Warm up.")
    for arm in arms.values():
        arm(warm)
    runs = []
    for number in range(options.rounds):
        for at, prompt in enumerate(prompts):
            token_ids = _encode(loaded, prompt)
            shift = (number + at) % len(names)
            for name in names[shift:] + names[:shift]:
                start = time.perf_counter()
                output, length = arms[name](token_ids)
                seconds = time.perf_counter() - start
                runs.append(
                    Run(name, prompt["kind"], prompt["id"], number, seconds, output, length)
                )
                progress.advance(task)
    return runs


def _decode(
    engine: Engine, token_ids: list[int], mode: Mode, options: argparse.Namespace
) -> tuple[tuple[int, ...], float]:
    params = SamplingParams(temperature=0, max_tokens=options.max_tokens)
    # A scope of its own, so that no run finds its prompt computed by the one before.
    row = engine.generate(Request(token_ids, params, mode, scope=secrets.token_hex(8)))
    return tuple(row.output_ids), row.stats.mean_acceptance_length


@torch.inference_mode()
def _generate(
    model: PreTrainedModel, token_ids: list[int], options: argparse.Namespace, **extra: Any
) -> tuple[tuple[int, ...], float]:
    ids = torch.tensor([token_ids], device=model.device)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=options.max_tokens,
        do_sample=False,
        **extra,
    )
    return tuple(output[0, len(token_ids) :].tolist()), 0.0


def _throughput(
    loaded: LoadedModel,
    prompts: Sequence[dict[str, str]],
    options: argparse.Namespace,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Total tokens per second when the same eight requests come one, four or eight at a time."""
    mixture = [prompts[i * len(prompts) // 8] for i in range(8)]
    batches = {"standard": ["standard"] * 8, "mixed modes": ["standard", "speculative"] * 4}
    rates: dict[tuple[str, int], list[float]] = {}
    task = progress.add_task("throughput", total=options.rounds * len(batches) * len(CONCURRENCY))
    modes, profile = _modes(), load_profile(loaded)
    for number in range(options.rounds):
        for name, wanted in batches.items():
            shift = number % len(CONCURRENCY)
            for width in CONCURRENCY[shift:] + CONCURRENCY[:shift]:
                engine = Engine(loaded.model, loaded.tokenizer, cost=CostModel(profile))
                requests = [
                    Request(
                        _encode(loaded, prompt),
                        SamplingParams(temperature=0, max_tokens=options.max_tokens),
                        modes[mode],
                    )
                    for prompt, mode in zip(mixture, wanted, strict=True)
                ]
                rates.setdefault((name, width), []).append(_rate(engine, requests, width))
                progress.advance(task)
    return [
        {
            "rows": name,
            "concurrency": width,
            "tokens_per_second": statistics.median(values),
            "spread": [min(values), max(values)],
            "ratio_to_1": statistics.median(values) / statistics.median(rates[name, 1]),
        }
        for (name, width), values in sorted(
            rates.items(), key=lambda item: (item[0][0], item[0][1])
        )
    ]


def _rate(engine: Engine, requests: Sequence[Request], width: int) -> float:
    start = time.perf_counter()
    tokens = 0
    for first in range(0, len(requests), width):
        tickets = engine.submit(requests[first : first + width])
        while engine.step():
            pass
        tokens += sum(ticket.sequence.num_output_tokens for ticket in tickets)
    return tokens / (time.perf_counter() - start)


def _encode(loaded: LoadedModel, prompt: dict[str, str]) -> list[int]:
    return loaded.tokenizer.encode_chat([{"role": "user", "content": prompt["text"]}])


def _loops(token_ids: Sequence[int]) -> bool:
    """Whether the end of the text is one short piece, four times over."""
    return any(
        len(token_ids) >= 4 * period
        and len(
            {tuple(token_ids[-period * (i + 1) : len(token_ids) - period * i]) for i in range(4)}
        )
        == 1
        for period in range(1, 25)
    )


def _gate(runs: Sequence[Run]) -> dict[str, Any]:
    """Which answers count: equal to our standard mode's, and no loop."""
    standard = {run.prompt: run.token_ids for run in runs if run.arm == "standard"}
    loops = sorted(prompt for prompt, ids in standard.items() if _loops(ids))
    different = sorted(
        {f"{run.arm}: {run.prompt}" for run in runs if run.token_ids != standard[run.prompt]}
    )
    return {"prompts": len(standard), "loops_left_out": loops, "different_from_standard": different}


def _summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Per kind and arm, the median over prompts and rounds of the speed relative to our standard."""
    standard = {(run.prompt, run.round): run for run in runs if run.arm == "standard"}
    answers = {run.prompt: run.token_ids for run in standard.values()}
    rows = []
    for kind in dict.fromkeys(run.kind for run in runs):
        for arm in dict.fromkeys(run.arm for run in runs):
            mine = [
                run
                for run in runs
                if (run.kind, run.arm) == (kind, arm)
                and run.token_ids == answers[run.prompt]
                and not _loops(run.token_ids)
            ]
            if not mine:
                continue
            ratios = [standard[run.prompt, run.round].seconds / run.seconds for run in mine]
            rows.append(
                {
                    "kind": kind,
                    "arm": arm,
                    "prompts": len({run.prompt for run in mine}),
                    "tokens_per_second": statistics.median(
                        len(run.token_ids) / run.seconds for run in mine
                    ),
                    "ratio_to_standard": statistics.median(ratios),
                    "ratio_spread": [min(ratios), max(ratios)],
                    "mean_acceptance_length": statistics.mean(run.accept_length for run in mine),
                }
            )
    return rows


def _machine(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "device": options.device,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rounds": options.rounds,
        "max_tokens": options.max_tokens,
        "model": options.model,
    }


def _markdown(report: dict[str, Any]) -> str:
    machine, answers = report["machine"], report["answers"]
    lines = [
        f"Greedy, {machine['dtype']} on {machine['device']}, {machine['threads']} threads, "
        f"{machine['max_tokens']} tokens, medians of {machine['rounds']} interleaved rounds.",
        "",
        "| prompts | arm | answers | tokens/s | of standard (spread) | mean acceptance length |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in report["batch_1"]:
        low, high = row["ratio_spread"]
        length = row["mean_acceptance_length"]
        lines.append(
            f"| {row['kind']} | {row['arm']} | {row['prompts']} | {row['tokens_per_second']:.1f} | "
            f"{row['ratio_to_standard']:.2f}x ({low:.2f}–{high:.2f}) | "
            f"{f'{length:.2f}' if length else '–'} |"
        )
    lines += [
        "",
        "| rows | at once | tokens/s (spread) | of one at a time |",
        "|---|---:|---:|---:|",
    ]
    for row in report["throughput"]:
        low, high = row["spread"]
        lines.append(
            f"| {row['rows']} | {row['concurrency']} | {row['tokens_per_second']:.1f} "
            f"({low:.1f}–{high:.1f}) | {row['ratio_to_1']:.2f}x |"
        )
    lines += [
        "",
        f"Of {answers['prompts']} prompts, left out as loops: "
        f"{', '.join(answers['loops_left_out']) or 'none'}. Tokens other than standard mode's: "
        f"{', '.join(answers['different_from_standard']) or 'none'}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
