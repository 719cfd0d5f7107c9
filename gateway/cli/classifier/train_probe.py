"""``draftgate classifier train-probe``: trains a probe of one model on labelled rows, and measures it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from gateway import config
from gateway.classification import probe_training, second_opinion
from gateway.classification.domain import DomainClassifier
from gateway.classification.probe_training import Trained
from gateway.classification.rows import Row, labels_of, read_rows
from gateway.classification.scoring import score_all, score_with
from gateway.cli.files import replace, require_place
from gateway.cli.progress import count_progress
from gateway.probe import BLOCK, Blocks, Floats, ProbeWeights, load
from gateway.types import DOMAINS

if TYPE_CHECKING:
    from gateway.backends.local.pooling import PromptPooler


_SEED = 7


def _layers(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in value.split(",")}))
    except ValueError:
        raise click.BadParameter("give numbers such as 8 or 4,8,12") from None


@click.command(name="train-probe")
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--model", default="demo", show_default=True, help="The model, as it is served.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="The probe's file to write."
)
@click.option(
    "--layers",
    default="8",
    show_default=True,
    callback=_layers,
    help="After which layers to look, for example 4,8,12.",
)
@click.option(
    "--max-rows",
    type=click.IntRange(1),
    help="At most so many rows, drawn at random; by default all.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(16),
    default=256,
    show_default=True,
    help="How much of a prompt counts.",
)
@click.option(
    "--window",
    type=click.IntRange(BLOCK),
    default=probe_training.Options().window,
    show_default=True,
    help=f"Tokens of the windows that medical and legal are judged by; a multiple of {BLOCK}.",
)
@click.option(
    "--dev",
    type=click.Path(path_type=Path),
    help="Rows that are only measured on, alone and together with the text model.",
)
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
def train_probe(
    data: tuple[Path, ...],
    model: str,
    out: Path,
    layers: tuple[int, ...],
    max_rows: int | None,
    max_tokens: int,
    window: int,
    dev: Path | None,
    device: str,
) -> None:
    """Train a probe of MODEL's hidden states on DATA (JSON lines with `text` and `domains`).

    It fits these weights of the model alone. Needs scikit-learn.
    """
    if window % BLOCK:
        raise click.BadParameter(f"must be a multiple of {BLOCK}", param_hint="--window")
    require_place(out)
    rows, measured = _some(read_rows(data), max_rows), read_rows([dev]) if dev else ()
    from gateway.backends.local.pooling import PromptPooler

    pooler = PromptPooler(
        model, layers=layers, max_tokens=max_tokens, device=device, cache=config.load().cache
    )
    blocks = _pooled(pooler, (*rows, *measured))
    options = probe_training.Options(window=window)
    with count_progress("fitting") as progress:
        trained = probe_training.train(
            blocks[: len(rows)],
            labels_of(rows),
            [row.source for row in rows],
            options=options,
            progress=progress,
        )
    weights = _weights(pooler, trained, window)
    replace(out, weights.dump())
    _, content_hash = load(out)
    _show(rows, trained)
    if measured:
        _show_both(measured, blocks[len(rows) :], trained.projection, weights)
    click.echo(f"Wrote {out} for {pooler.name}, SHA-256 {content_hash}", err=True)


def _some(rows: Sequence[Row], most: int | None) -> Sequence[Row]:
    if most is None or len(rows) <= most:
        return rows
    return random.Random(_SEED).sample(rows, most)  # noqa: S311 - the same rows every time


def _pooled(pooler: PromptPooler, rows: Sequence[Row]) -> list[Blocks]:
    blocks = []
    with count_progress("reading prompts") as progress:
        for done, row in enumerate(rows, start=1):
            blocks.append(pooler.pool(list(zip(row.roles(), row.texts(), strict=True))))
            progress(done, len(rows))
    return blocks


def _weights(pooler: PromptPooler, trained: Trained, window: int) -> ProbeWeights:
    shape = (len(pooler.layers), -1, len(DOMAINS))
    return ProbeWeights(
        model=pooler.name,
        model_weights=pooler.weights,
        layers=pooler.layers,
        projection=np.ascontiguousarray(trained.projection.reshape(shape)),
        mixing=trained.mixing,
        intercept=trained.intercept,
        window=window,
        step=BLOCK,
        prefix=pooler.prefix,
    )


def _show(rows: Sequence[Row], trained: Trained) -> None:
    """Each domain, by probes that have not seen the row's source."""
    labels = labels_of(rows)
    table = Table(box=None, pad_edge=False)
    for heading in ("domain", "rows", "AP", "bar", "recall", "false alarms"):
        table.add_column(heading, justify="left" if heading == "domain" else "right")
    for column, domain in enumerate(DOMAINS):
        bar = probe_training.OPERATING_POINTS.get(domain, 0.5)
        called, own = trained.held_out[:, column] >= bar, labels[:, column]
        shares = (trained.average_precisions[column], called[own].mean(), called[~own].mean())
        ap, recall, false_alarms = (f"{share:.3f}" for share in shares)
        table.add_row(domain, str(int(own.sum())), ap, f"{bar:.2f}", recall, false_alarms)
    console = Console(width=max(Console().width, 100))
    console.print(f"{len(rows)} rows, each by a probe that has not seen its source:")
    console.print(table)


def _show_both(
    rows: Sequence[Row], blocks: Sequence[Blocks], projection: Floats, weights: ProbeWeights
) -> None:
    """The probe beside the shipped text model, on rows that it was not trained on."""
    text = score_all(score_with(DomainClassifier()), rows).astype(np.float32)
    scores = [probe_training.prompt_scores(row, projection, weights.window) for row in blocks]
    # Of each domain's two scores one is mixed in with 0, so both can be the one that counts.
    probe = np.array([weights.probabilities(row, row) for row in scores])
    folds = probe_training.source_folds([row.source for row in rows], probe_training.FOLDS)
    table = Table(box=None, pad_edge=False)
    for heading in ("medical or legal by", "recall", "false bans", "recall at equal false bans"):
        table.add_column(heading, justify="left" if heading.endswith("by") else "right")
    for found in second_opinion.compare(text, probe, labels_of(rows), folds):
        shares = (found.recall, found.false_bans, found.recall_at_equal)
        table.add_row(found.way, *(f"{share:.3f}" for share in shares))
    console = Console(width=max(Console().width, 100))
    console.print(f"{len(rows)} rows that were not trained on, at {second_opinion.BAR:.2f}:")
    console.print(table)
