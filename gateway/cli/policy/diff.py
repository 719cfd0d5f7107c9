"""``draftgate policy diff``: where two policies decide differently, over every request there can be."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gateway.cli.policy.requests import print_case
from gateway.cli.printing import print_json
from gateway.routing.comparison import Change, Comparison, compare
from gateway.routing.policy import load

_path = click.Path(path_type=Path)


@click.command()
@click.argument("old", type=_path)
@click.argument("new", type=_path)
@click.option("--fail-on-looser", is_flag=True, help="Exit with 1 when any request gets more.")
@click.option("--examples", is_flag=True, help="Show a request of each kind, as a test case.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
def diff(old: Path, new: Path, fail_on_looser: bool, examples: bool, as_json: bool) -> None:
    """Say which requests NEW decides otherwise than OLD.

    Looser is: a faster mode, allowed instead of refused, lossy instead of exact, a higher limit.
    Exits with 0, with 1 for a looser decision and --fail-on-looser, with 2 when a file is wrong or
    the policies are too large to compare.
    """
    comparison = compare(load(old), load(new))
    if as_json:
        print_json({"looser": comparison.looser, **msgspec.to_builtins(comparison)})
    else:
        _print(Console(), comparison, examples)
    if fail_on_looser and comparison.looser:
        raise SystemExit(1)


def _print(console: Console, comparison: Comparison, examples: bool) -> None:
    for change in comparison.changes:
        _print_change(console, change)
        if examples:
            print_case(console, change.example, change.assumes)
    looser = sum(change.looser for change in comparison.changes)
    if comparison.changes:
        count = len(comparison.changes)
        words = f"{count} change{'s' if count > 1 else ''}, {looser} of them looser."
    else:
        words = "No change: both decide every request alike."
    console.print(Text(words, style="red" if looser else "green"))


def _print_change(console: Console, change: Change) -> None:
    effects = ", ".join(map(str, change.effects))
    old, new = (" or ".join(rules) for rules in (change.old_rules, change.new_rules))
    rules = f"by {old}" if old == new else f"was {old}, now {new}"
    mark = "looser" if change.looser else "change"
    console.print(Text(f"{mark}  {effects} ({rules})", style="bold"), soft_wrap=True)
    where = list(change.where)
    if "none" not in change.requested_modes:
        where.append(f"where callers ask for {' or '.join(change.requested_modes)}")
    console.print(Text(f"    {'; '.join(where) or 'every request'}"), soft_wrap=True)
