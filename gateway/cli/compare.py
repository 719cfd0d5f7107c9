"""``draftgate compare``: what other modes and verifiers make of the texts of standard mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
import msgspec

from gateway import extensions
from gateway.cli.experiment import (
    INTERRUPTED,
    Names,
    engine_options,
    json_option,
    limit_option,
    modes_option,
    out_option,
    run_to_end,
    show,
    temperature_option,
    write_report,
)
from gateway.cli.local import experimenting
from gateway.cli.progress import count_progress
from gateway.experiments import compare_report
from gateway.experiments.arms import Arm, Drafting, arms
from gateway.experiments.compare import Options, plan, summarize
from gateway.experiments.decoding import Answer, Task, answers
from gateway.experiments.journal import Journal, open_journal
from gateway.experiments.prompts import Prompt, digest, in_turn, read_prompts
from gateway.types import Mode


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the answers in a folder were made with; going on with them needs the same."""

    command: str = "compare"
    prompts: str
    temperatures: tuple[float, ...]
    modes: tuple[str, ...]
    verifiers: tuple[str, ...]
    drafting: Drafting
    engine: Mapping[str, Any]
    samples: int
    max_tokens: int
    seed: int


@click.command()
@click.argument("file", metavar="PROMPTS.jsonl", type=click.Path(path_type=Path))
@temperature_option
@modes_option
@click.option(
    "--verifier",
    "verifiers",
    type=Names(lambda: extensions.names("verifiers")),
    default="coupled",
    show_default=True,
    help="One or more, with commas.",
)
@click.option(
    "--max-distortion",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.1,
    show_default=True,
    help="What a lossy verifier may spend on an answer.",
)
@click.option("--gold", type=click.Path(path_type=Path), help='Right answers: {"id", "gold": […]}.')
@click.option(
    "--samples", type=click.IntRange(1), default=2, show_default=True, help="Of each prompt."
)
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True)
@limit_option
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-3,
    show_default=True,
    help="How seldom a sound decoder may be called unsound.",
)
@click.option(
    "--margin",
    type=click.FloatRange(0, min_open=True),
    default=0.5,
    show_default=True,
    help="Hedging phrases in 100 words that are as good as none.",
)
@click.option("--concurrency", type=click.IntRange(1, 64), default=4, show_default=True)
@engine_options
@out_option
@json_option
def compare(
    file: Path,
    temperatures: tuple[float, ...],
    modes: tuple[str, ...],
    verifiers: tuple[str, ...],
    max_distortion: float,
    gold: Path | None,
    samples: int,
    max_tokens: int,
    limit: int | None,
    seed: int,
    alpha: float,
    margin: float,
    concurrency: int,
    engine: Mapping[str, Any],
    drafting: Drafting,
    out: Path | None,
    as_json: bool,
) -> None:
    """Answer PROMPTS in other modes and hold every answer against standard mode's.

    Each prompt is answered with the seeds of standard mode, and in standard mode with seeds of its own.
    A row of the file is {"prompt": "…"}, with "id", "domain" and "gold" where there are any.

    Exits with 0, with 1 if an exact verifier is found to change the law of the answers, with 130 after
    Ctrl-C.
    """
    prompts = in_turn(read_prompts(file, gold=gold), limit)
    drafting = msgspec.structs.replace(drafting, max_distortion=max_distortion)
    chosen = arms([Mode(mode) for mode in modes], verifiers, drafting)
    tasks = plan(prompts, temperatures, chosen, samples=samples, max_tokens=max_tokens, seed=seed)
    settings = Settings(
        prompts=digest(prompts),
        temperatures=temperatures,
        modes=modes,
        verifiers=verifiers,
        drafting=drafting,
        engine=engine,
        samples=samples,
        max_tokens=max_tokens,
        seed=seed,
    )
    with open_journal(out, settings, Answer) as journal:
        complete = run_to_end(lambda: _decode(journal, tasks, prompts, chosen, engine, concurrency))
        options = Options(alpha=alpha, margin=margin)
        summary = summarize(journal.rows, chosen, prompts, planned=len(tasks), options=options)
        grids = compare_report.grids(summary)
        write_report(out, summary, grids, compare_report.chart(summary))
    show(summary, grids, out, as_json)
    if not complete:
        raise SystemExit(INTERRUPTED)
    if any(one.unsound for one in summary.comparisons):
        raise SystemExit(1)


async def _decode(
    journal: Journal[Answer],
    tasks: Sequence[Task],
    prompts: Sequence[Prompt],
    chosen: Sequence[Arm],
    engine: Mapping[str, Any],
    concurrency: int,
) -> None:
    there = {answer.key for answer in journal.rows}
    missing = [task for task in tasks if task.key not in there]
    if not missing:
        return
    # Every draft is tried: what is asked is what drafts do to texts, not whether they pay.
    options = {**engine, "cost_model": "off", "probe": "off"}
    async with experimenting(options, chosen, prompts, journal.rows) as backend:
        with count_progress("Answers") as progress:
            progress(len(journal.rows), len(tasks))
            async with aclosing(answers(backend, missing, concurrency=concurrency)) as found:
                async for answer in found:
                    journal.add(answer)
                    progress(len(journal.rows), len(tasks))
