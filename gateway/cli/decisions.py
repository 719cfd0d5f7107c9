"""``draftgate decisions``: reads the decision log and adds feedback to it; no gateway need run."""

from __future__ import annotations

import asyncio
import getpass
import json
import time
from collections.abc import Sequence

import click
import msgspec

from gateway import config
from gateway.archive import MAX_NOTE_CHARACTERS
from gateway.archive import feedback as checked
from gateway.audit.filters import Filters
from gateway.audit.query import MAX_LIMIT, Entry, Page
from gateway.audit.record import Feedback
from gateway.cli import entries as render
from gateway.cli import ledger
from gateway.cli.asking import BadInput, ask, filtered, log_url
from gateway.cli.digest import digest
from gateway.cli.printing import console
from gateway.cli.statistics import stats
from gateway.errors import ConfigError, GatewayError
from gateway.types import DOMAINS


class _NotFound(click.ClickException):
    """Nothing has this id."""

    exit_code = 1


@click.group()
def decisions() -> None:
    """Read, verify and keep the decision log, and add feedback to it."""


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one line an entry.")


_limit = click.option(
    "--limit", type=click.IntRange(1, MAX_LIMIT), default=20, show_default=True, help="How many."
)
_cursor = click.option("--cursor", help="Go on where a page ended: what it gave as its cursor.")


@decisions.command("list")
@_limit
@_cursor
@filtered
@_as_json
@log_url
def list_decisions(
    filters: Filters, limit: int, cursor: str | None, as_json: bool, url: str | None
) -> None:
    """List decisions, newest first."""
    _print_page(ask(url, lambda reader: reader.list(filters, limit=limit, cursor=cursor)), as_json)


@decisions.command("search")
@click.argument("text")
@_limit
@_cursor
@filtered
@_as_json
@log_url
def search(
    filters: Filters, limit: int, cursor: str | None, as_json: bool, url: str | None
) -> None:
    """Find decisions with TEXT in the caller, the rule or a note, or whose id, request id or digest
    begins with it; newest first. Upper and lower case count in ids alone."""
    _print_page(ask(url, lambda reader: reader.list(filters, limit=limit, cursor=cursor)), as_json)


def _print_page(page: Page, as_json: bool) -> None:
    if as_json:
        _print_json(page.entries)
    else:
        console(240).print(render.table(page.entries))
    if page.next_cursor is not None:
        click.echo(
            f"More than {len(page.entries)}: narrow the search, give a larger --limit, "
            f"or go on with --cursor {page.next_cursor}",
            err=True,
        )


@decisions.command("show")
@click.argument("decision_id", metavar="ID")
@_as_json
@log_url
def show(decision_id: str, as_json: bool, url: str | None) -> None:
    """Show one decision whole. ID may be the beginning of an id that no other shares."""
    entry = _find(url, decision_id)
    if as_json:
        _print_json([entry])
        return
    console(240).print(*render.parts(entry), sep="\n")


@decisions.command("feedback")
@click.argument("decision_id", metavar="ID")
@click.option("--domain", "domains", type=click.Choice(DOMAINS), multiple=True, help="One of all.")
@click.option("--none", "none_of_them", is_flag=True, help="It belongs to none of the ten.")
@click.option("--note", default="", help=f"Free text, {MAX_NOTE_CHARACTERS} characters at most.")
@click.option("--by", default=getpass.getuser, help="Who says so; by default the user.")
@log_url
def give_feedback(
    decision_id: str,
    domains: tuple[str, ...],
    none_of_them: bool,
    note: str,
    by: str,
    url: str | None,
) -> None:
    """Say what a request was about: every domain it belongs to. The last word counts; all are kept."""
    if bool(domains) == none_of_them:
        raise click.UsageError("Give --domain for every domain it belongs to, or --none.")
    found = _find(url, decision_id).decision.decision_id

    audit = config.load().audit

    async def append(record: Feedback) -> None:
        store = await ledger.open_store(url or audit.url, audit)
        try:
            await store.append_feedback(record)
        finally:
            await store.aclose()

    try:
        record = checked(found, domains, note, by=by, given_at=time.time())
        asyncio.run(append(record))
    except (ConfigError, GatewayError) as error:
        raise BadInput(str(error)) from error
    click.echo(f"{render.plain(found)}: {', '.join(domains) or 'none of the ten'}")


def _find(url: str | None, decision_id: str) -> Entry:
    """The one entry with this id, or whose id begins so."""
    found = ask(url, lambda reader: reader.find(decision_id, limit=5))
    exact = [entry for entry in found if entry.decision.decision_id == decision_id]
    entries = exact or found
    if not entries:
        raise _NotFound(f"no decision {decision_id!r} is in the log")
    if len(entries) > 1:
        ids = ", ".join(render.plain(entry.decision.decision_id) for entry in entries)
        raise BadInput(f"{decision_id!r} is the beginning of several: {ids}")
    return entries[0]


for command in (stats, digest, ledger.verify, ledger.prune, ledger.export_log, ledger.import_log):
    decisions.add_command(command)


def _print_json(entries: Sequence[Entry]) -> None:
    # ASCII, so that nothing a client sent can end a line or command a terminal.
    for entry in entries:
        click.echo(json.dumps(msgspec.to_builtins(entry), ensure_ascii=True))
