"""``draftgate models``: fetch a model before it is needed."""

from __future__ import annotations

import click

from gateway import config
from gateway.cli.progress import model_progress


@click.group()
def models() -> None:
    """Fetch models."""


@models.command()
@click.argument("model", default="demo")
def pull(model: str) -> None:
    """Make MODEL ready to be served: a folder, a .gguf file, a hub id, or "demo".

    The demo model is downloaded and checked; a GGUF file is dequantized once into the cache.
    """
    # Imported here: this brings in torch.
    from gateway.backends.local import fetch

    with model_progress() as report:
        place = fetch(model, cache=config.load().cache, progress=report)
    click.echo(place)
