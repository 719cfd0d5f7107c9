"""How a terminal shows a request that a search has found: as a case of a test file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text


def print_case(console: Console, case: Mapping[str, Any], assumes: Sequence[str]) -> None:
    """The case, ready to be copied, and what it takes for granted."""
    text = yaml.safe_dump(
        [dict(case)], sort_keys=False, default_flow_style=None, allow_unicode=True, width=100
    )
    for each in assumes:
        text += f"  # assuming {each}\n"
    console.print(Text("\n".join(f"    {line}" for line in text.splitlines())), soft_wrap=True)
