"""``draftgate classifier``: trains the domain classifier on labelled rows, and measures it."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from gateway.classification import linear, training
from gateway.classification.domain import SHIPPED_WEIGHTS
from gateway.classification.evaluation import Report, evaluate
from gateway.classification.rows import Row, read_rows
from gateway.cli.files import refuse_missing_folder, replace
from gateway.cli.printing import print_json
from gateway.cli.progress import count_progress
from gateway.cli.train_probe import train_probe

_data = click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")


@click.group()
def classifier() -> None:
    """Train and measure the domain classifier."""


classifier.add_command(train_probe)


@classifier.command()
@_data
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="The weights file to write."
)
@click.option(
    "--calibrate",
    type=click.Path(path_type=Path),
    help="Rows of other sources that scores are made probabilities with; default: cross-fitting.",
)
@click.option(
    "--dev",
    type=click.Path(path_type=Path),
    help="Rows to measure on; without it, the training rows, which flatters.",
)
@_json
def train(
    data: tuple[Path, ...], out: Path, calibrate: Path | None, dev: Path | None, as_json: bool
) -> None:
    """Train on DATA (JSON lines with `text` and `domains`) and write the weights.

    The same rows give the same file. Needs scikit-learn.
    """
    refuse_missing_folder(out)
    rows = read_rows(data)
    calibration = read_rows([calibrate]) if calibrate is not None else ()
    measured = read_rows([dev]) if dev is not None else rows
    with count_progress("training") as progress:
        model = training.train(rows, calibration=calibration, progress=progress)
    replace(out, model.dump())
    # Measured as it was written: rounding included.
    written, content_hash = linear.load(out)
    _show(evaluate(written, measured), as_json)
    click.echo(f"Wrote {out}, {out.stat().st_size / 1e6:.1f} MB, SHA-256 {content_hash}", err=True)


@classifier.command(name="evaluate")
@_data
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    default=SHIPPED_WEIGHTS,
    help="The weights file; default: the one shipped.",
)
@_json
def evaluate_command(data: tuple[Path, ...], weights: Path, as_json: bool) -> None:
    """Measure weights on labelled rows."""
    rows: tuple[Row, ...] = read_rows(data)
    model, _ = linear.load(weights)
    _show(evaluate(model, rows), as_json)


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("domain", "rows", "precision", "recall", "F1", "AP"):
        table.add_column(heading, justify="left" if heading == "domain" else "right")
    thresholds = [at.threshold for at in report.domains[0].thresholds]
    for threshold in thresholds:
        table.add_column(f"recall ≥ {threshold:.2f} (95 %)", justify="right")
        table.add_column("false alarms", justify="right")
    for one in report.domains:
        cells = [f"{x:.3f}" for x in (one.precision, one.recall, one.f1, one.average_precision)]
        for at in one.thresholds:
            cells.append(f"{at.recall:.3f} ({at.recall_low:.3f}–{at.recall_high:.3f})")
            cells.append(f"{at.false_alarms:.3f}")
        table.add_row(one.domain, str(one.rows), *cells)
    console = Console(width=max(Console().width, 190))
    console.print(table)
    console.print(
        f"{report.rows} rows, macro-F1 {report.macro_f1:.3f}, "
        f"top domain right {report.top_is_right:.3f}, false bans {report.false_bans:.3f}"
    )
