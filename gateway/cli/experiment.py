"""What the commands that run experiments have in common: their options, Ctrl-C, and what they write."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gateway.cli.entries import plain
from gateway.cli.files import replace
from gateway.cli.printing import console, print_json
from gateway.experiments.arms import Drafting
from gateway.experiments.grid import Grid, markdown
from gateway.types import Mode

T = TypeVar("T")
INTERRUPTED = 130
"""The exit status that shells give to what Ctrl-C has ended."""

out_option = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for the results, as they come. The same command goes on with what is there.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
limit_option = click.option(
    "--limit", type=click.IntRange(1), help="At most so many prompts of each domain."
)


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers with commas between them."""

    name = "numbers"

    def __init__(self, low: float, high: float, *, whole: bool = False) -> None:
        self._low, self._high, self._whole = low, high, whole

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Raises click.BadParameter; a number that is there twice counts once."""
        if isinstance(value, tuple):
            return value
        kind = "whole numbers" if self._whole else "numbers"
        try:
            found = [float(part) for part in str(value).split(",") if part.strip()]
        except ValueError:
            found = []
        inside = all(self._low <= one <= self._high for one in found)
        if not found or not inside or (self._whole and any(one % 1 for one in found)):
            self.fail(f"give {kind} from {self._low:g} to {self._high:g}, with commas", param, ctx)
        return tuple(dict.fromkeys(found))


class Names(click.ParamType[tuple[str, ...]]):
    """Names with commas between them."""

    name = "names"

    def __init__(self, known: Callable[[], Sequence[str]]) -> None:
        self._known = known

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Raises click.BadParameter."""
        if isinstance(value, tuple):
            return value
        found = tuple(dict.fromkeys(p.strip() for p in str(value).split(",") if p.strip()))
        unknown = [name for name in found if name not in self._known()]
        if unknown or not found:
            self.fail(f"give some of {', '.join(self._known())}, with commas", param, ctx)
        return found


temperature_option = click.option(
    "--temperature",
    "temperatures",
    type=Numbers(0, 2),
    default="0,0.7",
    show_default=True,
    help="One or more, with commas.",
)
modes_option = click.option(
    "--mode",
    "modes",
    type=Names(lambda: [mode.value for mode in Mode]),
    default="speculative,hybrid",
    show_default=True,
    help="One or more, with commas; standard mode is always there.",
)

_ENGINE = (
    click.option("--model", help="A folder, a .gguf file, a hub id, or demo."),
    click.option("--draft-source", default="suffix", show_default=True, help="suffix, model, …"),
    click.option("--draft-model", help="For the source model: a folder, a .gguf file, a hub id."),
    click.option(
        "--draft-layers",
        type=click.IntRange(1),
        help="Draft with the first layers of the draft model; without one, of the model itself.",
    ),
    click.option(
        "--num-speculative-tokens", type=click.IntRange(1, 64), default=8, show_default=True
    ),
    click.option("--standard-first", type=click.IntRange(0), default=10, show_default=True),
    click.option("--content-tokens", is_flag=True, help="Hybrid: content tokens undrafted."),
)


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options of model and drafts; it gets ``engine`` and ``drafting``."""

    @functools.wraps(command)
    def run(
        model: str | None,
        draft_source: str,
        draft_model: str | None,
        draft_layers: int | None,
        num_speculative_tokens: int,
        standard_first: int,
        content_tokens: bool,
        **options: Any,
    ) -> None:
        engine = {"model": model, "draft_model": draft_model, "draft_layers": draft_layers}
        drafting = Drafting(
            source=draft_source,
            num_speculative_tokens=num_speculative_tokens,
            standard_first=standard_first,
            content_tokens=Mode.STANDARD if content_tokens else Mode.SPECULATIVE,
        )
        command(engine=engine, drafting=drafting, **options)

    return functools.reduce(lambda made, option: option(made), reversed(_ENGINE), run)


def run_to_end(work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Run ``work``; False where Ctrl-C ended it, which is worth a report of what is there."""
    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        return False
    return True


def write_report(
    folder: Path | None, summary: msgspec.Struct, grids: Sequence[Grid], chart: str
) -> None:
    """``summary.json``, ``table.md`` and ``plot.svg``, where there is a folder for them."""
    if folder is None:
        return
    document = msgspec.json.format(msgspec.json.encode(summary), indent=2)
    replace(folder / "summary.json", document + b"\n")
    replace(folder / "table.md", markdown(grids).encode())
    replace(folder / "plot.svg", chart.encode())


def show(
    summary: msgspec.Struct, grids: Sequence[Grid], folder: Path | None, as_json: bool
) -> None:
    """Print it for a program or for a person."""
    if as_json:
        print_json(summary)
        return
    for grid in grids:
        console().print(*_shown(grid), sep="\n")
    if folder is not None:
        click.echo(
            f"Written to {folder}: results.jsonl, summary.json, table.md, plot.svg", err=True
        )


def _shown(grid: Grid) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(grid.title, style="bold")]
    if grid.rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for at, heading in enumerate(grid.headings):
            table.add_column(heading, justify="left" if at < grid.left else "right")
        for row in grid.rows:
            table.add_row(*(Text(plain(cell)) for cell in row))
        parts.append(table)
    return [*parts, *(Text(plain(note)) for note in grid.notes), Text("")]
