"""``draftgate models``: fetch a model before it is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gateway import config
from gateway.cli.progress import model_progress
from gateway.config import GatewayConfig


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


def settle_waiting(settings: GatewayConfig) -> None:
    """Set how idle threads wait; torch reads it once, so this comes before what brings in torch."""
    local = next((b for b in settings.backends.values() if b.type == "local"), None)
    if local is None or "torch" in sys.modules:
        return
    from gateway.backends.local.waiting import variables

    def notify() -> None:
        click.echo("Measuring how idle threads wait best (once, some seconds)", err=True)

    config.export(variables(local.options, config.environment(), notify))


def fetch_models(settings: GatewayConfig) -> None:
    """Make the models of all local backends ready, so that building these needs no progress bar."""
    wanted = [backend.options for backend in settings.backends.values() if backend.type == "local"]
    if not wanted:
        return
    from gateway.backends.local import fetch

    with model_progress() as report:
        for options in wanted:
            cache = options.get("cache", settings.cache)
            for model in (options.get("model", "demo"), options.get("draft_model")):
                if model is not None:
                    fetch(str(model), cache=Path(cache) if cache else None, progress=report)
