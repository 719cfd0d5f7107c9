"""Keeps what a benchmark has found: its figures as JSON, and the table of them beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


def keep(path: Path, results: Any, table: str) -> None:
    """Write ``path`` and its ``.md``, whole or not at all: what was measured before must not be lost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(results), indent=1).decode()
    for target, content in ((path, text), (path.with_suffix(".md"), table)):
        part = target.with_name(target.name + ".part")
        part.write_text(content + "\n", encoding="utf-8")
        part.replace(target)
