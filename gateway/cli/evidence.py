"""``draftgate evidence``: reads the evidence in the decision log and settles alarms; no gateway need run."""

from __future__ import annotations

import asyncio
import getpass
import time
from collections.abc import Callable
from typing import TypeVar

import click
from rich.console import Console

from gateway import config
from gateway.audit.record import EvidenceEvent
from gateway.cli import cells as render
from gateway.cli import ledger
from gateway.cli.asking import BadInput, Missing, as_bad_input, log_url
from gateway.cli.entries import plain
from gateway.cli.printing import console, print_json
from gateway.evidence.follower import Follower
from gateway.evidence.journal import Journal
from gateway.evidence.reading import Reading, readings
from gateway.evidence.watch import clearing

_T = TypeVar("_T")


@click.group()
def evidence() -> None:
    """Read what the tokens of each kind of traffic say together, and settle alarms."""


_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@evidence.command("list")
@_as_json
@log_url
def list_cells(as_json: bool, url: str | None) -> None:
    """List all cells, those in alarm first."""
    found = _ask(url, _readings)
    if as_json:
        print_json(found)
        return
    console(240).print(render.table(found))


@evidence.command("show")
@click.argument("cell", metavar="ID")
@_as_json
@log_url
def show(cell: str, as_json: bool, url: str | None) -> None:
    """Show one cell whole. ID may be the beginning of an id that no other shares."""
    found = _ask(url, _readings)
    reading = next(each for each in found if each.id == _one(cell, [each.id for each in found]))
    if as_json:
        print_json(reading)
        return
    console(240).print(*render.parts(reading), sep="\n")


@evidence.command("history")
@click.argument("cell", metavar="[ID]", required=False)
@click.option("--limit", type=click.IntRange(1, 10000), default=100, show_default=True)
@_as_json
@log_url
def history(cell: str | None, limit: int, as_json: bool, url: str | None) -> None:
    """List alarms and clearings, newest first: all of them, or those of one cell."""

    def read(journal: Journal) -> tuple[EvidenceEvent, ...]:
        if cell is None:
            return journal.history(limit=limit)
        known = [event.cell.id for event in journal.events()]
        return journal.history(_one(cell, known), limit=limit)

    events = _ask(url, read)
    if as_json:
        print_json([{"id": event.cell.id, "event": event} for event in events])
        return
    console(240).print(render.events(events))


@evidence.command("clear")
@click.argument("cell", metavar="ID")
@click.option("--reason", required=True, help="What was found and mended; kept in the log.")
@click.option("--by", default=getpass.getuser, help="Who says so; by default the user.")
@_as_json
@log_url
def clear(cell: str, reason: str, by: str, as_json: bool, url: str | None) -> None:
    """Take an alarm for settled: its cell is decoded as decided again.

    Running gateways follow within seconds (evidence.poll_seconds).
    """
    if not reason.strip():
        raise click.UsageError("Say in --reason what was found; it is kept in the log.")
    events = {event.cell.id: event for event in _ask(url, Journal.events)}
    event = events[_one(cell, list(events))]
    if event.kind != "alarm":
        raise Missing(f"{event.cell.id} is not in alarm: there is nothing to clear")
    audit = config.load().audit

    async def append(record: EvidenceEvent) -> bool:
        store = await ledger.open_store(url or audit.url, audit)
        try:
            return await store.append_event(record)
        finally:
            await store.aclose()

    record = clearing(event, by=by, reason=reason, at=time.time())
    with as_bad_input():
        if not asyncio.run(append(record)):
            raise Missing(f"{event.cell.id} has just been cleared by somebody else")
    if as_json:
        print_json({"id": record.cell.id, "event": record})
        return
    click.echo(f"{record.cell.id} cleared: {plain(record.cell.text)}")


def _readings(journal: Journal) -> tuple[Reading, ...]:
    """All cells as a gateway that starts now would know them."""
    follower = Follower(journal, limit=config.load().evidence.cells)
    with Console(stderr=True).status("reading the log"):
        events = follower.catch_up()
    return readings(follower.board.states, {event.cell.id: event for event in events})


def _one(prefix: str, known: list[str]) -> str:
    """The one id that is or begins with ``prefix``."""
    if prefix in known:
        return prefix
    found = [cell for cell in known if prefix and cell.startswith(prefix)]
    if not found:
        raise Missing(f"no cell {prefix!r} is known; `draftgate evidence list` has all of them")
    if len(found) > 1:
        raise BadInput(f"{prefix!r} is the beginning of several: {', '.join(found)}")
    return found[0]


def _ask(url: str | None, question: Callable[[Journal], _T]) -> _T:
    """What the log at ``url``, or the configured one, answers."""
    with as_bad_input():
        journal = Journal(url or config.load().audit.url)
        try:
            return question(journal)
        finally:
            journal.close()
