"""What the commands print for a program to read."""

from __future__ import annotations

from typing import Any

import click
import msgspec


def print_json(value: Any) -> None:
    """One JSON document, laid out."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
