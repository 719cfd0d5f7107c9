"""`Grid`: a table before anybody has decided whether a terminal or a file shows it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Headings and rows of text; the first ``left`` columns hold words, the others numbers."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 2
    notes: tuple[str, ...] = ()
    """What to read below it."""


def markdown(grids: Sequence[Grid]) -> str:
    """All tables as a page."""
    return "\n".join(line for grid in grids for line in [*_lines(grid), ""])


def _lines(grid: Grid) -> list[str]:
    marks = ["---" if at < grid.left else "---:" for at in range(len(grid.headings))]
    lines = [f"## {grid.title}", ""]
    if grid.rows:
        lines += [_row(grid.headings), f"|{'|'.join(marks)}|", *map(_row, grid.rows), ""]
    return [*lines, *grid.notes]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def figure(value: float | None, spec: str = ".3f") -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else format(value, spec)


def with_bounds(
    value: float | None, low: float | None, high: float | None, spec: str = ".3f"
) -> str:
    """A number and its interval."""
    if value is None or low is None or high is None:
        return figure(value, spec)
    return f"{format(value, spec)} ({format(low, spec)} to {format(high, spec)})"
