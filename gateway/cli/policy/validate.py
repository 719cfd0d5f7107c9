"""``draftgate policy validate``: every problem with its place, or what was loaded."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

import click

from gateway.cli.policy.chosen import assured, chosen_policy, file_argument
from gateway.cli.printing import print_json
from gateway.errors import ConfigError, Problem
from gateway.routing.policy import Policy


@click.command()
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Print problems and warnings as JSON.")
def validate(file: Path | None, as_json: bool) -> None:
    """Check a policy and name every problem with its line and column.

    Warns of expired rules, and of bans at thresholds that the classifier's contract does not cover.

    Exits with 0 when the policy can be served, 2 when it cannot.
    """
    try:
        loaded = chosen_policy(file)
    except ConfigError as error:
        if not as_json:
            raise
        problems = [_problem(problem) for problem in error.problems]
        print_json({"valid": False, "hash": None, "problems": problems, "warnings": []})
        raise SystemExit(2) from None
    today = datetime.datetime.now(datetime.UTC).date()
    warnings = (*loaded.warnings(today), *assured().warnings(loaded))
    if as_json:
        print_json({"valid": True, "hash": loaded.hash, "problems": [], "warnings": warnings})
    else:
        _print_loaded(loaded, warnings)


def _problem(problem: Problem) -> dict[str, str | int]:
    return {
        "file": problem.path,
        "line": problem.line,
        "column": problem.column,
        "message": problem.message,
        "hint": problem.hint,
    }


def _print_loaded(loaded: Policy, warnings: Iterable[str]) -> None:
    bans = sum(rule.kind == "ban" for rule in loaded.rules)
    click.echo(
        f"{loaded.path}: ok. Policy {loaded.name}, {loaded.version}: "
        f"{len(loaded.rules)} rules, {bans} of them bans."
    )
    for layer in loaded.layers:
        click.echo(
            f"{layer.path}: ok. {layer.name} tightens with {len(tuple(layer.rules()))} rules."
        )
    for warning in warnings:
        click.echo(f"{loaded.path}: warning: {warning}", err=True)
