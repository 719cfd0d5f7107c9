"""``draftgate classifier train``: trains the domain classifier on labelled rows."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.classification import training
from gateway.classification.rows import read_rows
from gateway.cli.classifier.measured import evaluation_of, measure, policy_of
from gateway.cli.classifier.tables import show
from gateway.cli.files import refuse_missing_folder, replace
from gateway.cli.progress import count_progress


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
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
@click.option("--json", "as_json", is_flag=True, help="Print the evaluation as JSON.")
def train(
    data: tuple[Path, ...], out: Path, calibrate: Path | None, dev: Path | None, as_json: bool
) -> None:
    """Train on DATA (JSON lines with `text` and `domains`) and write the weights.

    The same rows give the same file. Needs scikit-learn.
    """
    refuse_missing_folder(out)
    rows = read_rows(data)
    calibration = read_rows([calibrate]) if calibrate is not None else ()
    measured_on = read_rows([dev]) if dev is not None else rows
    with count_progress("training") as progress:
        model = training.train(rows, calibration=calibration, progress=progress)
    replace(out, model.dump())
    # Measured as it was written: rounding included.
    measured = measure(measured_on, "domain", out)
    show(evaluation_of(measured_on, measured, policy_of(None), training=rows), as_json)
    size = out.stat().st_size / 1e6
    click.echo(f"Wrote {out}, {size:.1f} MB, SHA-256 {measured.content_hash}", err=True)
