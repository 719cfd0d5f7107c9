"""``draftgate matrix``: what each mode saves by domain, what evidence says, and the policy it suggests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
import msgspec

from gateway import config, extensions
from gateway.cli.experiment import (
    INTERRUPTED,
    engine_options,
    json_option,
    limit_option,
    modes_option,
    out_option,
    run_to_end,
    show,
    write_report,
)
from gateway.cli.files import replace
from gateway.cli.local import experimenting
from gateway.cli.policy.chosen import chosen_policy
from gateway.cli.progress import count_progress
from gateway.cli.signals import SignalReader
from gateway.errors import ConfigError, InvalidRequest
from gateway.experiments import matrix_report
from gateway.experiments.arms import Arm, Drafting, arms
from gateway.experiments.journal import Journal, open_journal
from gateway.experiments.matrix import measured
from gateway.experiments.matrix_report import Matrix
from gateway.experiments.policy_file import write_policy
from gateway.experiments.prompts import Prompt, digest, in_turn, read_prompts
from gateway.experiments.suggestion import Suggestion, suggest
from gateway.experiments.timing import Block, TimedBlock, Work, blocks, timed
from gateway.routing.names import Known
from gateway.routing.policy import Policy
from gateway.routing.schema import PolicyEntry
from gateway.routing.sources import gather
from gateway.types import DOMAINS, Mode, Sampling

POLICY, TESTS = "suggested.yaml", "suggested_test.yaml"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the blocks in a folder were made with; going on with them needs the same."""

    command: str = "matrix"
    prompts: str
    modes: tuple[str, ...]
    drafting: Drafting
    engine: Mapping[str, Any]
    rounds: int
    work: Work


@click.command()
@click.argument("file", metavar="PROMPTS.jsonl", type=click.Path(path_type=Path))
@modes_option
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True)
@limit_option
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(path_type=Path),
    help="The policy in force; default: the configured one.",
)
@click.option(
    "--min-speedup",
    type=click.FloatRange(1),
    default=1.0,
    show_default=True,
    help="What the lower end of a speed-up's interval must be above.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-3,
    show_default=True,
    help="How seldom a sound mode may be called unsound.",
)
@engine_options
@out_option
@json_option
def matrix(
    file: Path,
    modes: tuple[str, ...],
    temperature: float,
    max_tokens: int,
    rounds: int,
    limit: int | None,
    seed: int,
    policy_file: Path | None,
    min_speedup: float,
    alpha: float,
    engine: Mapping[str, Any],
    drafting: Drafting,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure by domain what each mode saves on PROMPTS, and suggest a policy.

    A row of the file is {"prompt": "…"}, with its "domain"; without one, the configured classifiers say
    what it is about. With --out, the folder gets suggested.yaml and its tests.

    Exits with 0, with 1 if evidence speaks against a mode, with 130 after Ctrl-C.
    """
    policy = chosen_policy(policy_file)
    chosen = arms([Mode(mode) for mode in modes], ("coupled",), drafting)
    prompts = in_turn(_with_domains(read_prompts(file)), limit)
    todo = blocks(prompts, chosen, rounds)
    work = Work(temperature=temperature, max_tokens=max_tokens, seed=seed)
    settings = Settings(
        prompts=digest(prompts),
        modes=modes,
        drafting=drafting,
        engine=engine,
        rounds=rounds,
        work=work,
    )
    with open_journal(out, settings, TimedBlock) as journal:
        complete = run_to_end(lambda: _measure(journal, todo, prompts, chosen, engine, work))
        rows = measured(journal.rows, chosen, alpha=alpha)
        suggestions = suggest(rows, policy, min_speedup=min_speedup)
        found = Matrix(
            blocks=len(journal.rows),
            planned=len(todo),
            policy=f"{policy.name} ({policy.version})",
            alpha=alpha,
            measured=rows,
            suggestions=suggestions,
        )
        found = _with_policy(found, policy, suggestions, drafting, out)
        grids = matrix_report.grids(found)
        write_report(out, found, grids, matrix_report.chart(found))
    show(found, grids, out, as_json)
    if not complete:
        raise SystemExit(INTERRUPTED)
    if any(not one.sound for one in rows):
        raise SystemExit(1)


def _with_domains(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Each with its domain; the classifiers are asked for those that do not say."""
    read = SignalReader(config.load().classifiers)
    found = []
    for prompt in prompts:
        if prompt.domain and prompt.domain not in DOMAINS:
            raise InvalidRequest(
                f"The prompt {prompt.id!r} has the domain {prompt.domain!r}; known are "
                f"{', '.join(DOMAINS)}. Use `group` for kinds of your own."
            )
        domain = prompt.kind
        if not domain:
            top = read(prompt.request(Sampling())).top("domain")
            domain = top.value if top is not None else ""
        found.append(msgspec.structs.replace(prompt, domain=domain))
    return tuple(found)


async def _measure(
    journal: Journal[TimedBlock],
    todo: Sequence[Block],
    prompts: Sequence[Prompt],
    chosen: Sequence[Arm],
    engine: Mapping[str, Any],
    work: Work,
) -> None:
    done = {block.key for block in journal.rows}
    missing = [block for block in todo if block.key not in done]
    if not missing:
        return
    there = [answer for row in journal.rows for answer in row.answers]
    async with experimenting({**engine, "probe": "off"}, chosen, prompts, there) as backend:
        with count_progress("Blocks") as progress:
            progress(len(journal.rows), len(todo))
            async with aclosing(timed(backend, missing, work)) as found:
                async for block in found:
                    journal.add(block)
                    progress(len(journal.rows), len(todo))


def _with_policy(
    found: Matrix,
    policy: Policy,
    suggestions: Sequence[Suggestion],
    drafting: Drafting,
    out: Path | None,
) -> Matrix:
    """The matrix, with notes on the policy that was written, where there is a folder for it."""
    if out is None:
        return msgspec.structs.replace(found, notes=("With --out DIR a policy is written.",))
    if not suggestions:
        note = "No policy is written: none of the prompts is of a domain that a policy can name."
        return msgspec.structs.replace(found, notes=(note,))
    try:
        written = write_policy(
            suggestions, found.measured, policy, _entry(policy), drafting, out / POLICY
        )
    except ConfigError as error:
        note = f"No policy is written: with the rules in force it would not be valid. {error}"
        return msgspec.structs.replace(found, notes=(note,))
    replace(out / POLICY, written.policy.encode())
    replace(out / TESTS, written.tests.encode())
    notes = (f"Written to {out / POLICY}; its tests beside it.", *written.differences)
    return msgspec.structs.replace(found, notes=notes)


def _entry(policy: Policy) -> PolicyEntry:
    """The policy as it was written."""
    known = Known(extensions.names("verifiers"), extensions.names("draft_sources"))
    texts = {file.path: file.text for file in policy.files}
    return gather(policy.text, Path(policy.path), lambda path: texts[str(path)], known).entry
