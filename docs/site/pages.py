"""What the site needs of the pages' Markdown that a reader of the files does not."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"!?\[([^\]]+)\]\(\.\./[^)]+\)")
_STEP = re.compile(r"\d+\. ")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of each page.

    Links to files of the checkout, which the site does not have, become plain text, and what belongs
    to a numbered step is indented by the four spaces that Python-Markdown asks for.
    """
    return "\n".join(_indented(_OUTSIDE.sub(r"\1", markdown).split("\n")))


def _indented(lines: list[str]) -> list[str]:
    found, in_step = [], False
    for line in lines:
        if line.strip() and not line.startswith("   "):
            in_step = _STEP.match(line) is not None
        belongs = in_step and line.startswith("   ")
        found.append(f" {line}" if belongs else line)
    return found
