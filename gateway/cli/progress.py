"""Progress bars, on standard error, so that output can be piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)


@contextmanager
def model_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Give a callback (what, bytes done, bytes in all); 0 in all shows a bar without an end."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, int] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for earlier in tasks.values():
                    bar.update(earlier, total=1, completed=1)  # type: ignore[arg-type]
                tasks[what] = bar.add_task(what, total=total or None)
            bar.update(tasks[what], completed=done, total=total or None)  # type: ignore[arg-type]

        yield report
        for task in tasks.values():
            bar.update(task, total=1, completed=1)  # type: ignore[arg-type]


@contextmanager
def count_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give a callback (done, in all)."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
