"""Which stretch of which decision log a command is about, read for the classifier's sake."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from gateway import config
from gateway.audit.filters import Filters
from gateway.audit.query import MAX_LIMIT, DecisionReader
from gateway.classification.promise import Labelled
from gateway.cli.asking import Moment, ask
from gateway.cli.progress import count_progress
from gateway.errors import ConfigError, Problem
from gateway.labelled import Logged, logged, merged
from gateway.types import SHORT_HASH_LENGTH


class Window(NamedTuple):
    """A stretch of a log."""

    config: Path | None
    url: str | None
    since: float | None
    by: tuple[str, ...]

    @property
    def given(self) -> bool:
        """Whether any of it was asked for."""
        return any(value not in (None, ()) for value in self)


def log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that make up a `Window`, given to the command as ``window``."""

    @click.option("--config", "config_file", type=click.Path(path_type=Path), help="Names the log.")
    @click.option("--url", help="The log's database URL; by default the configuration's.")
    @click.option("--since", type=Moment(), help="Not older: 90m, 12h, 7d or an ISO time.")
    @click.option("--by", multiple=True, help="Whose feedback counts; by default everybody's.")
    @functools.wraps(command)
    def run(
        *args: Any,
        config_file: Path | None,
        url: str | None,
        since: float | None,
        by: tuple[str, ...],
        **options: Any,
    ) -> None:
        command(*args, window=Window(config_file, url, since, by), **options)

    return run


def read_log(window: Window, classifier_hash: str) -> Logged:
    """What the log holds of one classifier. Raises click's errors where there is no log."""
    url = window.url or config.load(window.config).audit.url
    return ask(url, lambda reader: _read(reader, window, classifier_hash))


def read_labelled(window: Window, classifier_hash: str) -> Labelled:
    """The requests with feedback. Raises ConfigError where there is none."""
    found = read_log(window, classifier_hash)
    if not len(found.labelled.labels):
        message = (
            f"no feedback on requests that classifier {classifier_hash[:SHORT_HASH_LENGTH]} scored"
        )
        if found.others:
            message += f" ({found.others} were scored by another, or not whole)"
        hint = "give some: draftgate decisions feedback ID --domain …"
        raise ConfigError([Problem(message, path="decision log", hint=hint)])
    return found.labelled


async def _read(reader: DecisionReader, window: Window, classifier_hash: str) -> Logged:
    # Page by page: a record is a hundred times as large as its scores.
    parts: list[Logged] = []
    done, cursor = 0, None
    with count_progress("reading the log") as progress:
        while True:
            page = await reader.list(Filters(since=window.since), limit=MAX_LIMIT, cursor=cursor)
            parts.append(logged(page.entries, classifier_hash, by=window.by))
            done, cursor = done + len(page.entries), page.next_cursor
            progress(done, done + (MAX_LIMIT if cursor else 0))
            if cursor is None:
                return merged(parts)
