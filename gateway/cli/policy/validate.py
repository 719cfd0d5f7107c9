"""``draftgate policy validate``: every problem with its place, or what was loaded."""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from gateway.cli.policy.chosen import chosen_policy, file_argument


@click.command()
@file_argument
def validate(file: Path | None) -> None:
    """Check a policy and name every problem with its line and column; warn of expired rules.

    Exits with 0 when the policy can be served, 2 when it cannot.
    """
    loaded = chosen_policy(file)
    bans = sum(rule.kind == "ban" for rule in loaded.rules)
    click.echo(
        f"{loaded.path}: ok. Policy {loaded.name}, {loaded.version}: "
        f"{len(loaded.rules)} rules, {bans} of them bans."
    )
    for layer in loaded.layers:
        click.echo(
            f"{layer.path}: ok. {layer.name} tightens with {len(tuple(layer.rules()))} rules."
        )
    for warning in loaded.warnings(datetime.datetime.now(datetime.UTC).date()):
        click.echo(f"{loaded.path}: warning: {warning}", err=True)
