"""``draftgate policy replay``: what a policy would have decided for the requests in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gateway.audit.filters import Filters
from gateway.audit.query import MAX_LIMIT, DecisionReader, Entry
from gateway.cli.asking import Moment, ask
from gateway.cli.policy.chosen import chosen_policy
from gateway.cli.printing import print_json
from gateway.replay import Replayed, ReplayReport, Speed
from gateway.replay import replay as decide_anew

CONFIGURED = "decisions"
SHOWN = 20


@click.command()
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    default=CONFIGURED,
    show_default=True,
    help="The configured log, or the URL of another.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=10_000, show_default=True, help="How many."
)
@click.option("--since", type=Moment(), help="Not older: 90m, 12h, 7d or an ISO time.")
@click.option("--fail-on-looser", is_flag=True, help="Exit with 1 when any request gets more.")
@click.option("--json", "as_json", is_flag=True, help="Print all that would change as JSON.")
def replay(
    new: Path, source: str, limit: int, since: float | None, fail_on_looser: bool, as_json: bool
) -> None:
    """Say which of the newest requests in the decision log the policy NEW would decide otherwise.

    The log holds no text and no headers: where conditions on those would settle it, that is said.
    Exits with 0, with 1 for a looser decision and --fail-on-looser, with 2 for bad input.
    """
    policy = chosen_policy(new)
    url = None if source == CONFIGURED else source
    entries = ask(url, lambda reader: _newest(reader, since, limit))
    report = decide_anew(policy, entries)
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        _print(Console(), report)
    if fail_on_looser and any(each.looser for each in report.changed):
        raise SystemExit(1)


async def _newest(reader: DecisionReader, since: float | None, limit: int) -> list[Entry]:
    entries: list[Entry] = []
    cursor = None
    while len(entries) < limit:
        page = await reader.list(
            Filters(since=since), limit=min(MAX_LIMIT, limit - len(entries)), cursor=cursor
        )
        entries += page.entries
        cursor = page.next_cursor
        if cursor is None:
            break
    return entries


def _print(console: Console, report: ReplayReport) -> None:
    for line, style in _lines(report):
        console.print(Text(line, style=style), soft_wrap=True)


def _lines(report: ReplayReport) -> Iterator[tuple[str, str]]:
    for each in report.changed[:SHOWN]:
        yield f"{each.decision_id}  {_change(each)}", ""
    if len(report.changed) > SHOWN:
        yield f"… and {len(report.changed) - SHOWN} more; --json lists all.", ""
    counts = f"{len(report.changed)} would change, {report.unchanged} would not"
    yield f"{report.requests} requests: {counts}, {len(report.unknown)} cannot be told.", "bold"
    for heading, by in (("domain", report.by_domain), ("caller", report.by_caller)):
        if by:
            yield f"By {heading}: {_counts(by)}.", ""
    for reason, count in Counter(each.unknown for each in report.unknown).items():
        yield f"Cannot be told for {count}: {reason}.", "yellow"
    if report.changed:
        yield _speed(report.speed), ""


def _change(each: Replayed) -> str:
    mark = "looser" if each.looser else "change"
    effects = ", ".join(map(str, each.effects))
    return f"{mark}  {effects} (was {each.old_rule}, now {each.new_rule})"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name or 'none'} {count}" for name, count in counts.items())


def _speed(speed: Speed) -> str:
    if not speed.requests:
        return "Speed: unknown; too few answers of these modes and domains were measured."
    unknown = f"; unknown for {speed.unknown}" if speed.unknown else ""
    return (
        f"Speed: {speed.requests} answers that change their mode took about "
        f"{speed.old_seconds:.1f} s to decode and would take {speed.new_seconds:.1f} s, "
        f"by medians of mode and domain{unknown}."
    )
