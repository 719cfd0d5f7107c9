"""What the commands print with: JSON for a program to read, a console for a person."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import msgspec
from rich.console import Console


def print_json(value: Any) -> None:
    """One JSON document, laid out."""
    # ASCII, so that nothing a client sent can end a line or command a terminal.
    plain = json.loads(msgspec.json.encode(value))
    click.echo(json.dumps(plain, ensure_ascii=True, indent=2))


def console(piped_width: int = 160) -> Console:
    """Standard output. A file or a pipe has no width, and nothing should be cut for want of one."""
    return Console(width=None if sys.stdout.isatty() else piped_width)
