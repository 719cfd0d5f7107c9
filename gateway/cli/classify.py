"""``draftgate classify``: shows what the classifiers say of a text or a request. Knows no policy."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway import config
from gateway.cli.printing import print_json
from gateway.cli.request_file import read_request
from gateway.cli.signals import SignalReader
from gateway.types import ChatRequest, Message, Signals

_BAR_WIDTH = 30


@click.command()
@click.argument("text", required=False, metavar="[TEXT | -]")
@click.option(
    "--request", "request_file", type=click.Path(path_type=Path), help="A JSON request body."
)
@click.option(
    "--weights", type=click.Path(), help="Weights of the domain classifier; default: those shipped."
)
@click.option("--json", "as_json", is_flag=True, help="Print the signals as JSON.")
def classify(
    text: str | None, request_file: Path | None, weights: str | None, as_json: bool
) -> None:
    """Print what the configured classifiers say of TEXT (- reads standard input) or of a request."""
    request = _request(text, request_file)
    names = config.load().classifiers
    if weights and "domain" not in names:
        raise click.UsageError("--weights is for the classifier domain, which is not configured.")
    signals = SignalReader(names, {"domain": {"weights": weights}} if weights else None)(request)
    if as_json:
        print_json(signals)
    else:
        _print(signals)
    if signals.error:
        raise click.ClickException(signals.error)


def _request(text: str | None, request_file: Path | None) -> ChatRequest:
    if (text is None) == (request_file is None):
        raise click.UsageError("give either TEXT (- for standard input) or --request FILE")
    if request_file is not None:
        return read_request(request_file)
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    return ChatRequest(model="any", messages=(Message("user", text or ""),))


def _print(signals: Signals) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("signal")
    table.add_column("value")
    table.add_column("score", justify="right")
    table.add_column("", width=_BAR_WIDTH)
    # The most probable domain first; other signals keep their order.
    for signal in sorted(signals.items, key=lambda one: (one.name, -one.score)):
        bar = Bar(1.0, 0.0, signal.score, width=_BAR_WIDTH)
        table.add_row(signal.name, Text(signal.value), f"{signal.score:.3f}", bar)
    console = Console()
    console.print(table)
    if signals.truncated:
        console.print(f"Scored {signals.scored_tokens} of {signals.total_tokens} characters.")
