"""``draftgate policy show``: the rules of a policy, and what is known of its bans."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from gateway.assurance import Guarantee
from gateway.classification.intervals import Rate
from gateway.cli.policy.chosen import assured, chosen_policy, file_argument
from gateway.cli.printing import console, print_json
from gateway.routing.policy import Policy


@click.command()
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Print rules and bans as JSON.")
def show(file: Path | None, as_json: bool) -> None:
    """Show the rules of a policy, and for each bar of its bans what the classifier's contract says.

    Whether the contract is about the classifier that is loaded, only a running gateway says.
    """
    loaded = chosen_policy(file)
    bans = assured().guarantees(loaded)
    if as_json:
        rules = [
            {"id": rule.id, "kind": rule.kind, "reason": rule.reason, "owner": rule.owner}
            for rule in loaded.rules
        ]
        print_json({"name": loaded.name, "hash": loaded.hash, "rules": rules, "bans": bans})
        return
    out = console()
    out.print(Text(f"{loaded.name} {loaded.version}", style="bold"))
    out.print(_rules(loaded))
    if bans:
        out.print(Text("\nbans, by the classifier's contract (95 %)", style="bold"))
        out.print(_bans(bans))


def _rules(policy: Policy) -> Table:
    rows = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("rule", "kind", "reason"):
        rows.add_column(heading)
    for rule in policy.rules:
        rows.add_row(Text(rule.id), rule.kind, Text(rule.reason))
    return rows


def _bans(bans: tuple[Guarantee, ...]) -> Table:
    rows = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("rule", "domain", "from", "recall", "missed at most", "false bans", ""):
        rows.add_column(heading)
    for one in bans:
        bound = "-" if one.miss_bound is None else f"{one.miss_bound:.2%}"
        at = f"measured at {one.contract_threshold:g}" if _lower(one) else ""
        rows.add_row(
            Text(one.rule),
            one.domain,
            f"{one.threshold:g}",
            _rate(one.recall),
            bound,
            _rate(one.false_bans),
            Text("; ".join(filter(None, (at, one.note))), style="yellow" if one.note else ""),
        )
    return rows


def _lower(one: Guarantee) -> bool:
    return one.contract_threshold is not None and one.threshold < one.contract_threshold


def _rate(rate: Rate | None) -> str:
    return "-" if rate is None else f"{rate.share:.3f} ({rate.low:.3f}–{rate.high:.3f})"
