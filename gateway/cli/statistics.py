"""``draftgate decisions stats``: counts, tokens and durations of the requests in the log."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from gateway.audit.filters import Filters
from gateway.audit.statistics import DEFAULT_BY, DIMENSIONS, Group, Quantiles, Statistics
from gateway.cli.asking import ask, filtered, log_url
from gateway.cli.entries import duration, plain
from gateway.cli.printing import console, print_json
from gateway.types import SHORT_HASH_LENGTH

_TIMES = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d %H:%M"}


@click.command()
@click.option(
    "--by",
    type=click.Choice(tuple(DIMENSIONS)),
    multiple=True,
    default=DEFAULT_BY,
    show_default=True,
    help="What the requests of a row share; more than once for several.",
)
@click.option(
    "--all", "all_of_them", is_flag=True, help="One row of all requests, instead of --by."
)
@filtered
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@log_url
def stats(
    by: tuple[str, ...], all_of_them: bool, filters: Filters, as_json: bool, url: str | None
) -> None:
    """Count requests, tokens, acceptance, attestation failures and durations by what they share."""
    dimensions = () if all_of_them else by
    found = ask(url, lambda reader: reader.stats(filters, by=dimensions))
    if as_json:
        print_json(found)
        return
    console(200).print(_table(found))
    if found.truncated:
        click.echo(f"Only the {len(found.groups)} largest: narrow the search.", err=True)


def _table(found: Statistics) -> Table:
    rows = Table(box=None, header_style="bold", pad_edge=False)
    for name in found.by:
        rows.add_column(name, overflow="ellipsis", no_wrap=True)
    columns = ("requests", "prompt", "completion", "accepted", "attestation failed", "errors")
    for name in (*columns, "first token p50", "p95", "total p50", "p95", "gateway p50", "p95"):
        rows.add_column(name, justify="right")
    for group in found.groups:
        values = (Text(_value(name, group.by[name])) for name in found.by)
        rows.add_row(*values, *_counts(group), *_durations(group))
    return rows


def _value(name: str, value: str | int | None) -> str:
    if value is None:
        return "-"
    if name in _TIMES:
        return datetime.fromtimestamp(int(value), UTC).strftime(_TIMES[name])
    text = plain(str(value))
    return text[:SHORT_HASH_LENGTH] if name == "policy" else text


def _counts(group: Group) -> tuple[Text, ...]:
    rate = group.acceptance_rate
    failed = group.attestation_failed
    return (
        Text(f"{group.requests}"),
        Text(f"{group.prompt_tokens}"),
        Text(f"{group.completion_tokens}"),
        Text("-" if rate is None else f"{rate:.0%}"),
        Text(f"{failed}", style="bold red" if failed else ""),
        Text(f"{group.errors}"),
    )


def _durations(group: Group) -> tuple[Text, ...]:
    return tuple(
        Text("-" if seconds is None else duration(seconds))
        for quantiles in (group.first_token, group.total, group.gateway)
        for seconds in _both(quantiles)
    )


def _both(quantiles: Quantiles) -> tuple[float | None, float | None]:
    return quantiles.p50, quantiles.p95
