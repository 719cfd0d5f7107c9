"""``draftgate classifier evaluate``: what a classifier is worth at the bars of a policy's bans."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.classification.rows import read_rows
from gateway.cli.classifier.diagram import draw
from gateway.cli.classifier.measured import (
    classifier_option,
    domain_option,
    evaluation_of,
    measure,
    policy_of,
    probabilities_option,
    refuse_unbanned,
    weights_option,
)
from gateway.cli.classifier.tables import show
from gateway.cli.files import replace, require_place


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@weights_option
@classifier_option
@probabilities_option
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="Its bans have the bars to measure at; default: the shipped policy.",
)
@domain_option
@click.option("--show-errors", type=click.IntRange(0), default=0, help="How many worst mistakes.")
@click.option("--show-text", is_flag=True, help="With the text of the rows.")
@click.option(
    "--trained-on",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Rows that the weights were trained on, for the model card.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Write the reliability diagram, SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print the evaluation as JSON.")
def evaluate(
    data: tuple[Path, ...],
    weights: Path | None,
    name: str,
    probabilities: Path | None,
    policy: Path | None,
    domains: tuple[str, ...],
    show_errors: int,
    show_text: bool,
    trained_on: tuple[Path, ...],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure a classifier on labelled rows: JSON lines with `text` and `domains`.

    A row counts as banned from the lowest bar of the policy's bans on; domains without a ban are
    measured at 0.5. Rows that the weights were trained on flatter them: see --probabilities.
    """
    if show_text and not show_errors:
        raise click.UsageError("--show-text goes with --show-errors N.")
    if plot is not None:
        require_place(plot)
    rows, bars = read_rows(data), policy_of(policy)
    refuse_unbanned(domains, bars)
    training = read_rows(trained_on) if trained_on else ()
    measured = measure(rows, name, weights, probabilities)
    evaluation = evaluation_of(
        rows, measured, bars, domains, training, show_errors=show_errors, show_text=show_text
    )
    if plot is not None:
        replace(plot, draw(evaluation.report).encode())
    show(evaluation, as_json)
