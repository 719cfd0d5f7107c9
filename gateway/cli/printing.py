"""What the commands print with: JSON for a program to read, a console for a person."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec
from rich.console import Console


def print_json(value: Any) -> None:
    """One JSON document, laid out."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def console(piped_width: int = 160) -> Console:
    """Standard output. A file or a pipe has no width, and nothing should be cut for want of one."""
    return Console(width=None if sys.stdout.isatty() else piped_width)
