"""``draftgate classifier drift``: is the traffic still what the contract was measured on?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import RenderableType
from rich.text import Text

from gateway import config
from gateway.classification.contract import SHIPPED_CONTRACT, read_contract
from gateway.classification.drift import DriftReport, Level
from gateway.classification.drift import drift as compare
from gateway.cli.classifier.logged import Window, log_options, read_log
from gateway.cli.classifier.tables import percent, table
from gateway.cli.printing import console, print_json
from gateway.types import SHORT_HASH_LENGTH

_STYLES = {Level.ALARM: "bold red", Level.WATCH: "yellow", Level.UNKNOWN: "dim", Level.OK: "green"}


@click.command()
@log_options
@click.option(
    "--contract",
    "contract_file",
    type=click.Path(path_type=Path),
    help="The contract; by default the configuration's, else the one shipped.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def drift(window: Window, contract_file: Path | None, as_json: bool) -> None:
    """Compare the decision log with the contract: how scores are distributed, and what people said.

    Exits with 1 on an alarm: scores that have moved (PSI 0.25 or more, and a KS distance above its
    bound), or feedback that shows more misses than the contract's target.
    """
    configured = config.load(window.config).classification.contract
    contract = read_contract(contract_file or configured or SHIPPED_CONTRACT)
    found = read_log(window, contract.classifier_hash)
    report = compare(contract, found.probabilities, found.labelled)
    if as_json:
        print_json(report)
    else:
        console().print(*_shown(report, found.others), sep="\n")
    if report.level is Level.ALARM:
        raise SystemExit(1)


def _shown(report: DriftReport, others: int) -> Iterator[RenderableType]:
    yield Text(
        f"{report.requests} requests, {report.labelled} with feedback, against the contract of "
        f"{report.made_on} (classifier {report.classifier_hash[:SHORT_HASH_LENGTH]})"
    )
    if others:
        yield Text(f"{others} more were scored by another classifier, or not whole.", style="dim")
    rows = table("domain", "PSI", "KS", "bound", "recall by feedback", "of", "false bans", "of")
    rows.add_column("")
    for one in report.domains:
        numbers = (one.psi, one.ks, one.ks_bound)
        rows.add_row(
            one.domain,
            *("-" if number is None else f"{number:.3f}" for number in numbers),
            percent(one.recall) if one.recall.rows else "-",
            str(one.recall.rows),
            percent(one.false_bans) if one.false_bans.rows else "-",
            str(one.false_bans.rows),
            Text(one.level.value, style=_STYLES[one.level]),
        )
    yield rows
    for one in report.domains:
        for reason in one.reasons:
            yield Text(f"{one.domain}: {reason}.", style=_STYLES[one.level])
