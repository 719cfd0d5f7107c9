"""``draftgate bench``: how fast a running gateway, or the bare engine, answers, by mode and load."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
import msgspec

from gateway.cli.experiment import (
    INTERRUPTED,
    Names,
    Numbers,
    engine_options,
    json_option,
    limit_option,
    out_option,
    run_to_end,
    show,
    write_report,
)
from gateway.cli.local import experimenting
from gateway.cli.progress import count_progress
from gateway.errors import ConfigError, Problem
from gateway.experiments import bench_report
from gateway.experiments.arms import Drafting, arms, standard_arm
from gateway.experiments.askers import AS_DECIDED, Asker, EngineAsker, GatewayAsker, first_model
from gateway.experiments.bench import Bench, Load, summed_up, sweep
from gateway.experiments.decoding import refuse_others
from gateway.experiments.journal import Journal, open_journal
from gateway.experiments.prompts import Prompt, digest, in_turn, read_prompts
from gateway.types import Mode, Sampling

PROMPTS = (
    Prompt(id="code", prompt="Write a Python function that reverses a list.", domain="code"),
    Prompt(id="talk", prompt="What should I see on a first day in Lisbon?", domain="general_chat"),
    Prompt(
        id="extraction",
        prompt="List the names as JSON: Ann met Bob and Eve in Rome; Bob wrote to Dan.",
        domain="structured_extraction",
    ),
)
"""Asked where no file is given."""
_ARMS = ("decided", *(mode.value for mode in Mode))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the lines in a folder were measured with; going on with them needs the same."""

    command: str = "bench"
    url: str | None
    model: str | None
    prompts: str
    modes: tuple[str, ...]
    concurrency: tuple[int, ...]
    requests: int
    sampling: Sampling
    seed: int
    engine: Mapping[str, Any]
    drafting: Drafting


@click.command()
@click.argument("file", metavar="[PROMPTS.jsonl]", type=click.Path(path_type=Path), required=False)
@click.option("--url", help="Of a running gateway; without it the engine itself is measured.")
@click.option("--key", help="For the gateway: an API key, or @FILE that holds it.")
@click.option(
    "--mode",
    "modes",
    type=Names(lambda: _ARMS),
    help="One or more, with commas; `decided` is what the gateway's policy decides. Default: "
    "decided,standard of a gateway, standard,speculative of the engine.",
)
@click.option(
    "--concurrency",
    type=Numbers(1, 1024, whole=True),
    default="1,4,8",
    show_default=True,
    help="How many at once; one or more, with commas.",
)
@click.option(
    "--requests", type=click.IntRange(1), default=24, show_default=True, help="In each line."
)
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True)
@limit_option
@click.option("--seed", type=int, default=0, show_default=True)
@engine_options
@out_option
@json_option
def bench(
    file: Path | None,
    url: str | None,
    key: str | None,
    modes: tuple[str, ...] | None,
    concurrency: tuple[float, ...],
    requests: int,
    max_tokens: int,
    temperature: float,
    limit: int | None,
    seed: int,
    engine: Mapping[str, Any],
    drafting: Drafting,
    out: Path | None,
    as_json: bool,
) -> None:
    """Time answers to PROMPTS, or to three of our own, with more and more asked for at once.

    Exits with 0, with 1 if an answer failed, with 130 after Ctrl-C.
    """
    modes = modes or (("decided", "standard") if url else ("standard", "speculative"))
    _refuse(url, key, modes, engine, drafting)
    prompts = in_turn(read_prompts(file) if file is not None else PROMPTS, limit)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    settings = Settings(
        url=url,
        model=engine["model"],
        prompts=digest(prompts),
        modes=modes,
        concurrency=tuple(map(int, concurrency)),
        requests=requests,
        sampling=sampling,
        seed=seed,
        engine=engine,
        drafting=drafting,
    )
    with open_journal(out, settings, Load) as journal:
        names = tuple(AS_DECIDED if mode == "decided" else mode for mode in modes)
        loads = [(arm, width) for width in settings.concurrency for arm in names]
        complete = run_to_end(lambda: _measure(journal, settings, _secret(key), prompts, loads))
        order = {load: at for at, load in enumerate(loads)}
        found = Bench(
            target=url or "the engine",
            model=_model(settings, journal.rows),
            planned=len(loads),
            lines=tuple(map(summed_up, sorted(journal.rows, key=lambda row: order[row.key]))),
        )
        grids = bench_report.grids(found)
        write_report(out, found, grids, bench_report.plot(found))
    show(found, grids, out, as_json)
    if not complete:
        raise SystemExit(INTERRUPTED)
    if any(line.failed for line in found.lines):
        raise SystemExit(1)


def _model(settings: Settings, rows: Sequence[Load]) -> str:
    """What the report calls it: a gateway's model as the gateway does."""
    if settings.url is not None and rows:
        return rows[0].model
    return settings.model or "the configured model"


def _refuse(
    url: str | None,
    key: str | None,
    modes: Sequence[str],
    engine: Mapping[str, Any],
    drafting: Drafting,
) -> None:
    if url is None and (key is not None or "decided" in modes):
        raise click.UsageError("--key and the mode `decided` are for a gateway: give its --url.")
    own = engine["draft_model"] or engine["draft_layers"] or drafting != Drafting()
    if url is not None and own:
        raise click.UsageError(
            "How a gateway drafts is its own: leave --draft-…, --num-speculative-tokens, "
            "--standard-first and --content-tokens out."
        )


def _secret(key: str | None) -> str | None:
    if key is None or not key.startswith("@"):
        return key
    path = Path(key[1:])
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError([Problem(f"cannot read: {error.strerror}", path=path)]) from None


async def _measure(
    journal: Journal[Load],
    settings: Settings,
    key: str | None,
    prompts: Sequence[Prompt],
    loads: Sequence[tuple[str, int]],
) -> None:
    there = {load.key for load in journal.rows}
    missing = [load for load in loads if load not in there]
    if not missing:
        return
    if settings.url is not None:
        model = settings.model or await first_model(settings.url, key)
        refuse_others(journal.rows, model)
        asker = GatewayAsker(settings.url, key, model)
        try:
            await _sweep(journal, settings, asker, model, prompts, missing)
        finally:
            await asker.aclose()
        return
    drafted = [Mode(mode) for mode in settings.modes if mode != Mode.STANDARD]
    chosen = arms(drafted, ("coupled",), settings.drafting) if drafted else (standard_arm(),)
    async with experimenting(settings.engine, chosen, prompts, journal.rows) as backend:
        model = backend.models[0].fingerprint
        await _sweep(journal, settings, EngineAsker(backend, chosen), model, prompts, missing)


async def _sweep(
    journal: Journal[Load],
    settings: Settings,
    asker: Asker,
    model: str,
    prompts: Sequence[Prompt],
    missing: Sequence[tuple[str, int]],
) -> None:
    total = settings.requests * len(missing)
    count = itertools.count(1)
    with count_progress("Answers") as progress:
        progress(0, total)
        found = sweep(
            asker,
            prompts,
            missing,
            settings.sampling,
            requests=settings.requests,
            seed=settings.seed,
            done=lambda: progress(next(count), total),
        )
        async with aclosing(found):
            async for load in found:
                journal.add(msgspec.structs.replace(load, model=model))
