"""``draftgate decisions verify|prune|export|import``: the decision log as a whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from gateway import config, credentials
from gateway.audit import database
from gateway.audit.anchor import Anchor, Anchored, read_anchor
from gateway.audit.archive import FileHoldings, open_sink, open_source, write_archive
from gateway.audit.copying import copy_in
from gateway.audit.erasure import Wanted
from gateway.audit.findings import Fault, Report
from gateway.audit.holdings import open_holdings
from gateway.audit.keys import Keyring, keyring
from gateway.audit.retention import Limits
from gateway.audit.store import DecisionStore
from gateway.audit.verification import verify as verify_log
from gateway.cli.entries import plain
from gateway.cli.printing import console, print_json
from gateway.config import AuditConfig

_BUSY_SECONDS = 30.0
_SHOWN = 10

_config = click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="YAML file of the gateway."
)
_url = click.option("--url", help="The log's database URL; by default the configuration's.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


_holdings = partial(open_holdings, busy_seconds=_BUSY_SECONDS)


class _Failed(click.ClickException):
    """What was asked for is not so."""

    exit_code = 1


@click.command()
@_config
@_url
@click.option(
    "--anchor",
    "anchor_path",
    type=click.Path(path_type=Path),
    help="The anchor to compare with; by default the configuration's.",
)
@click.option(
    "--file", "path", type=click.Path(path_type=Path), help="An exported file, not the database."
)
@click.option("--allow-unsigned", is_flag=True, help="A log that no key signed is no fault.")
@_as_json
def verify(
    config_path: Path | None,
    url: str | None,
    anchor_path: Path | None,
    path: Path | None,
    allow_unsigned: bool,
    as_json: bool,
) -> None:
    """Verify that the log holds what its writers wrote, all of it, in their order.

    Keys come from the configuration and the environment. Works beside a running gateway, and
    changes nothing. Exits with 0, with 1 for a log that is not as it was written, with 2 where it
    cannot be read.
    """
    audit = config.load(config_path).audit
    anchor_path = anchor_path or audit.anchor
    anchor = None if anchor_path is None else read_anchor(anchor_path)
    if path is None:
        report = _verify_database(url or audit.url, _keys(audit), anchor, allow_unsigned)
    else:
        report = _verify_file(path, _keys(audit), anchor, allow_unsigned)
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        _print(report)
    if not report.verified:
        raise SystemExit(1)


@click.command()
@_config
@_url
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="Keep so many days.")
@click.option(
    "--max-mb", type=click.FloatRange(min=0, min_open=True), help="Keep so many MB of records."
)
def prune(
    config_path: Path | None, url: str | None, days: float | None, max_mb: float | None
) -> None:
    """Drop the oldest records, and say so in the chain, so that the log still verifies.

    What the options leave open is the configuration's `audit.retention`.
    """
    audit = config.load(config_path).audit
    if days is None and max_mb is None:
        days, max_mb = audit.retention.days, audit.retention.max_mb
    if days is None and max_mb is None:
        raise click.UsageError("nothing limits the log: give --days or --max-mb")
    dropped = asyncio.run(_prune(url or audit.url, audit, Limits.of(days, max_mb)))
    click.echo(f"{dropped} records dropped.")


@click.command("export")
@_config
@_url
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "parquet"]),
    default="jsonl",
    show_default=True,
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file to write.")
@click.option("--texts", is_flag=True, help="Captured texts too, locked as they are.")
def export_log(
    config_path: Path | None, url: str | None, format_: str, out: Path, texts: bool
) -> None:
    """Write the whole log to one file, with its chains.

    `decisions verify --file` verifies it without the database.
    """
    audit = config.load(config_path).audit
    part = out.with_name(f"{out.name}.part")
    sink = open_sink(part, format_)
    try:
        with _holdings(url or audit.url) as holdings, _progress(holdings.count()) as advance:
            steps = write_archive(holdings, sink, _keys(audit), texts=texts)
            count = _run(steps, advance)
        sink.close()
        os.replace(part, out)
    finally:
        sink.close()
        part.unlink(missing_ok=True)
    click.echo(f"{count} records written to {out}.")


@click.command("import")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@_config
@_url
@click.option("--unverified", is_flag=True, help="Import what cannot be verified, too.")
@click.option("--texts", is_flag=True, help="Captured texts too, if they are in the file.")
def import_log(
    path: Path, config_path: Path | None, url: str | None, unverified: bool, texts: bool
) -> None:
    """Bring an exported log back into an empty database, after it was verified.

    Captured texts that are left out count as erased from then on.
    """
    audit = config.load(config_path).audit
    if not unverified:
        report = _verify_file(path, _keys(audit), None, allow_unsigned=True)
        if not report.verified:
            _print(report)
            raise _Failed("nothing was imported; --unverified imports it none the less")
    holdings = FileHoldings(open_source(path), texts=texts)
    with _progress(holdings.count()) as advance:
        count = _run(copy_in(holdings, database.locate(url or audit.url), _BUSY_SECONDS), advance)
    if not holdings.has_texts and any(link.table_name == "texts" for link, _ in holdings.links()):
        asyncio.run(_miss(url or audit.url, audit))
    click.echo(f"{count} records imported.")


async def open_store(url: str, audit: AuditConfig) -> DecisionStore:
    """The log, to add to it as a gateway of this configuration would."""
    anchor = None if audit.anchor is None else Anchor(audit.anchor)
    return await DecisionStore.open(
        url, keys=_keys(audit), anchor=anchor, busy_seconds=_BUSY_SECONDS
    )


async def _miss(url: str, audit: AuditConfig) -> None:
    """Say in the log that was brought back that it came without its texts."""
    store = await open_store(url, audit)
    try:
        await store.miss(Wanted(by="import", reason="not brought back with the log"))
    finally:
        await store.aclose()


async def _prune(url: str, audit: AuditConfig, limits: Limits) -> int:
    store = await open_store(url, audit)
    try:
        return await store.prune(limits)
    finally:
        await store.aclose()


def _verify_database(
    url: str, keys: Keyring, anchor: Iterable[Anchored | None] | None, allow_unsigned: bool
) -> Report:
    with _holdings(url) as holdings, _progress(holdings.count()) as advance:
        return verify_log(
            holdings, keys, anchor=anchor, allow_unsigned=allow_unsigned, advance=advance
        )


def _verify_file(
    path: Path, keys: Keyring, anchor: Iterable[Anchored | None] | None, allow_unsigned: bool
) -> Report:
    holdings = FileHoldings(open_source(path))
    with _progress(holdings.count()) as advance:
        return verify_log(
            holdings,
            keys,
            anchor=anchor,
            allow_unsigned=allow_unsigned,
            has_texts=holdings.has_texts,
            found=holdings.faults(keys),
            advance=advance,
        )


def _keys(audit: AuditConfig) -> Keyring:
    return keyring(credentials.signing_secrets(audit))


def _run(steps: Iterator[None], advance: Callable[[], object]) -> int:
    count = 0
    for _ in steps:
        advance()
        count += 1
    return count


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], object]]:
    """A bar on standard error, where that is a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("records", total=total or None)
        yield lambda: bar.advance(task)


def _print(report: Report) -> None:
    out = console(240)
    for line, style in _lines(report):
        out.print(Text(plain(line), style=style), soft_wrap=True)


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    if report.verified:
        yield "Verified: every record is what was recorded.", "bold green"
    else:
        many = "1 fault" if report.fault_count == 1 else f"{report.fault_count} faults"
        yield f"Not verified: {many}. The first bad record:", "bold red"
        for number, fault in enumerate(report.faults[:_SHOWN]):
            yield _fault(fault), "red" if number else "bold red"
        if report.fault_count > _SHOWN:
            yield f"and {report.fault_count - _SHOWN} more; --json tells of the first hundred.", ""
    records = ", ".join(f"{count} {name}" for name, count in sorted(report.records.items()))
    yield f"{records or 'no records'} in {report.chains} chains", ""
    signed = ", ".join(
        f"{count} with the key {key_id}" if key_id else f"{count} with none"
        for key_id, count in sorted(report.keys.items())
    )
    if signed:
        yield f"signed: {signed}", ""
    if report.first_at is not None and report.last_at is not None:
        yield f"recorded from {_time(report.first_at)} to {_time(report.last_at)}", ""
    if report.anchored:
        yield f"anchor: {report.anchored} lines agree", ""
    for note in report.notes:
        yield note, "yellow"


def _fault(fault: Fault) -> str:
    parts = [f"  {fault.kind.value}"]
    if fault.table:
        parts.append(f"{fault.table} {fault.record}")
    if fault.writer:
        place = "" if fault.position is None else f" link {fault.position}"
        parts.append(f"chain {fault.writer}{place}")
    if fault.recorded_at is not None:
        parts.append(f"recorded {_time(fault.recorded_at)}")
    return ", ".join(parts) + f": {fault.detail}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
