"""Decoding speed on one machine: our modes beside transformers' own ``generate``.

All arms run in one process on the same weights, interleaved prompt by prompt in rotating order, so
that a machine that speeds up or slows down does so for all of them. A row counts only where the
tokens are those of our standard mode, the text is no loop, and nothing else was running.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks import prompts as questions
from benchmarks import report, runs
from benchmarks.arms import model_drafts, modes, ours, request, theirs
from benchmarks.environment import describe
from benchmarks.measure import Task, blocks, choose, decode_block, measure
from benchmarks.prompts import Prompt, PromptError
from benchmarks.runs import STANDARD, Measurement, Run
from benchmarks.summary import counts
from benchmarks.throughput import measure_throughput, mixture
from decoders import Engine, load
from decoders.loader import LoadedModel
from decoders.models.base import ModelError
from gateway.experiments.guard import Guard

HERE = Path(__file__).parent
MAX_LENGTH = 2048
REFERENCE_TOKENS = 8
T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write results/NAME.json with its report and picture, once for each dtype."""
    options = _options(arguments)
    console = Console()
    try:
        chosen = questions.select(
            questions.read(options.prompts), options.groups, options.limit_per_group
        )
        for dtype in options.dtype:
            measurement = _measure(options, dtype, chosen, console)
            name = f"{options.prompts.stem}-{options.device}-{dtype}"
            path = options.out or HERE / "results" / f"{name}.json"
            runs.save(measurement, path)
            report.write(path)
            if options.json:
                print(path.read_text(encoding="utf-8"))
            else:
                console.print(report.markdown(measurement), markup=False, soft_wrap=True)
                console.print(f"Written to {path}", markup=False, soft_wrap=True)
    except (PromptError, ModelError, ValueError) as error:
        sys.exit(f"benchmark: {error}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoding", description=__doc__)
    add = parser.add_argument
    add("--model", default="demo", help="a folder, a .gguf file, a hub id, or demo")
    add("--draft-model", help="two more arms that draft with it: as --model")
    add("--draft-layers", type=_positive, help="cut it to its first layers; alone: cut --model")
    add("--device", default="cpu")
    add("--dtype", type=_list(str), default=["float32"], help="one or more, with commas")
    add("--prompts", type=Path, default=HERE / "prompts.jsonl", help="our rows, or Spec-Bench's")
    add("--groups", type=_list(str), default=[], help="with commas; default: all")
    add("--limit-per-group", type=_positive, default=4, help="default: 4")
    add("--arms", type=_list(str), default=[], help="with commas; default: all; standard always")
    add("--tokens", type=_positive, default=64, help="most tokens of an answer; default: 64")
    add("--temperature", type=_list(_temperature), default=[0.0], help="with commas; default: 0")
    add("--rounds", type=_positive, default=1)
    add(
        "--concurrency",
        type=_list(_positive),
        default=[1, 4, 8, 16],
        help="requests at once, with commas; 'none' leaves this part out",
    )
    add("--requests", type=_positive, default=16, help="many at once: how many in all; default: 16")
    add("--out", type=Path, help="the JSON file, for one dtype; default: results/…")
    add("--json", action="store_true", help="print the JSON in place of the tables")
    options = parser.parse_args(arguments)
    if options.out and (len(options.dtype) > 1 or options.out.suffix != ".json"):
        parser.error("--out is one file, NAME.json, for one dtype")
    if options.draft_layers and not options.draft_model:
        options.draft_model = options.model
    if "auto" in (options.device, *options.dtype):
        parser.error("--device and --dtype name what is measured: give cpu or cuda, float32, …")
    return options


def _measure(
    options: argparse.Namespace, dtype: str, chosen: Sequence[Prompt], console: Console
) -> Measurement:
    loaded = load(
        options.model,
        dtype=dtype,
        device=options.device,
        num_slots=max(options.concurrency, default=1),
        max_length=MAX_LENGTH,
    )
    prompts, left_out = _fitting(loaded, chosen, options.tokens)
    where = (dtype, options.device)
    pair = (options.draft_model, options.draft_layers)
    available = modes(model_drafts(*pair, loaded, *where) if options.draft_model else None)
    arms = choose([*theirs(options.model, *where, *pair), *ours(loaded, available)], options.arms)
    mine = {arm.name: available[arm.name] for arm in arms if arm.name in available}
    warm = Task(loaded.tokenizer.encode("Warm up."), 0.0, 0, REFERENCE_TOKENS)
    for arm in arms:
        arm.decode(warm)
    guard = Guard(_reference(loaded))
    todo = blocks(prompts, options.temperature, options.rounds)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=options.json) as progress:
        bar = progress.add_task(f"{dtype}, one at a time", total=len(todo))
        found = measure(
            todo,
            lambda block: decode_block(block, arms, loaded.tokenizer, options.tokens),
            guard,
            max_repeats=max(len(todo) // 5, 1),
            done=lambda: progress.advance(bar),
        )
        widths = options.concurrency
        total = len(widths) * len(options.temperature) * options.rounds
        bar = progress.add_task(f"{dtype}, many at once", total=total)
        mixed = mixture(_answered(prompts, found), options.requests)
        rows = (
            measure_throughput(
                loaded,
                mixed,
                mine,
                max_tokens=options.tokens,
                temperatures=options.temperature,
                concurrency=widths,
                rounds=options.rounds,
                guard=guard,
                done=lambda: progress.advance(bar),
            )
            if widths and mixed
            else []
        )
    return Measurement(
        environment={**describe(options.device), "reference_seconds": guard.spread},
        options={
            "model": loaded.name,
            "dtype": dtype,
            "draft_model": bool(options.draft_model),
            "draft_layers": options.draft_layers,
            "tokens": options.tokens,
            "rounds": options.rounds,
            "prompts": options.prompts.stem,
            "limit_per_group": options.limit_per_group,
        },
        runs=found,
        throughput=rows,
        left_out=left_out,
    )


def _fitting(
    loaded: LoadedModel, prompts: Sequence[Prompt], tokens: int
) -> tuple[list[Prompt], dict[str, str]]:
    """Those whose every turn fits into the context with its answers, and why the others do not."""
    fitting, left_out = [], {}
    for prompt in prompts:
        messages = [{"role": "user", "content": turn} for turn in prompt.turns]
        # A few tokens for what the chat template puts around an answer.
        answers = len(prompt.turns) * (tokens + 16)
        needed = len(loaded.tokenizer.encode_chat(messages)) + answers
        if needed > loaded.model.max_length:
            left_out[prompt.id] = f"{needed} tokens"
        else:
            fitting.append(prompt)
    if not fitting:
        raise PromptError(f"no prompt fits into {loaded.model.max_length} tokens")
    return fitting, left_out


def _answered(prompts: Sequence[Prompt], found: Sequence[Run]) -> list[Prompt]:
    """The prompts whose (first) answer in standard mode counts."""
    good = {run.prompt for run in found if run.arm == STANDARD and counts(run)}
    return [one for one in prompts if {one.id, f"{one.id}/1"} & good]


def _reference(loaded: LoadedModel) -> Callable[[], float]:
    """Times eight tokens in standard mode, always the same."""
    engine = Engine(loaded.model, loaded.tokenizer)
    task = Task(loaded.tokenizer.encode("One, two, three"), 0.0, 0, REFERENCE_TOKENS)
    mode = modes()[STANDARD]

    def reference() -> float:
        start = time.perf_counter()
        engine.generate(request(task, mode))
        return time.perf_counter() - start

    reference()
    return reference


def _list(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    def parse(text: str) -> list[T]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return [] if parts == ["none"] else [kind(part) for part in parts]

    return parse


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def _temperature(text: str) -> float:
    if not 0 <= (value := float(text)) <= 100:
        raise ValueError(text)
    return value


if __name__ == "__main__":
    main()
