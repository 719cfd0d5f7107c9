"""``draftgate classifier train``: trains the domain classifier on labelled rows."""

from __future__ import annotations

import io
from pathlib import Path

import click
import numpy as np

from gateway.classification import training, weights
from gateway.classification.domain import SHIPPED_WEIGHTS
from gateway.classification.rows import read_rows
from gateway.cli.classifier.measured import Measured, evaluation_of, policy_of
from gateway.cli.classifier.tables import show
from gateway.cli.files import replace, require_place
from gateway.cli.progress import count_progress


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="The weights file to write."
)
@click.option(
    "--encoder",
    type=click.Path(path_type=Path),
    default=SHIPPED_WEIGHTS,
    help="The file whose encoder is used; default: the weights shipped. See `classifier encoder`.",
)
@click.option(
    "--held-out",
    type=click.Path(path_type=Path),
    help="Also write every row's probabilities by stages that have not seen its source (.npy).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the evaluation as JSON.")
def train(
    data: tuple[Path, ...], out: Path, encoder: Path, held_out: Path | None, as_json: bool
) -> None:
    """Train on DATA (JSON lines with `text` and `domains`) and write the weights.

    The same rows give the same file. The evaluation is about rows whose sources the scoring stages
    had not seen. Needs scikit-learn and torch.
    """
    for path in (out, held_out):
        if path is not None:
            require_place(path)
    rows = read_rows(data)
    arrays = weights.load_encoder(encoder)
    with count_progress("training") as progress:
        trained = training.train(rows, arrays, progress=progress)
    replace(out, trained.data)
    if held_out is not None:
        buffer = io.BytesIO()
        np.save(buffer, trained.held_out)
        replace(held_out, buffer.getvalue())
    _, content_hash = weights.load(out)
    probabilities = trained.held_out.astype(np.float64)
    measured = Measured("domain", content_hash, probabilities, held_out=True)
    show(evaluation_of(rows, measured, policy_of(None), training=rows), as_json)
    size = out.stat().st_size / 1e6
    click.echo(f"Wrote {out}, {size:.1f} MB, SHA-256 {content_hash}", err=True)
