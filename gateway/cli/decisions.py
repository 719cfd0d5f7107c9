"""``draftgate decisions``: reads the decision log, adds feedback, erases texts; no gateway need run."""

from __future__ import annotations

import asyncio
import getpass
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec

from gateway import config
from gateway.archive import MAX_NOTE_CHARACTERS
from gateway.archive import feedback as checked
from gateway.audit.filters import Filters
from gateway.audit.query import MAX_LIMIT, Entry, Page
from gateway.audit.record import Feedback
from gateway.cli import entries as render
from gateway.cli import ledger, texts
from gateway.cli.asking import BadInput, Missing, Moment, as_bad_input, ask, filtered, log_url
from gateway.cli.digest import digest
from gateway.cli.printing import console
from gateway.cli.statistics import stats
from gateway.types import DOMAINS


@click.group()
def decisions() -> None:
    """Read, verify and keep the decision log, and add feedback to it."""


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one line an entry.")
_by = click.option("--by", default=getpass.getuser, help="Who it is; by default the user.")


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
@click.option("--text", is_flag=True, help="The captured text too; that you saw it is recorded.")
@_by
@_as_json
@log_url
def show(decision_id: str, text: bool, by: str, as_json: bool, url: str | None) -> None:
    """Show one decision whole. ID may be the beginning of an id that no other shares."""
    entry = _find(url, decision_id)
    captured: Mapping[str, str] = {}
    if text:
        audit = config.load().audit
        with as_bad_input():
            found = entry.decision.decision_id
            captured = texts.captured_texts(found, url or audit.url, audit, by=by)
    if as_json:
        said = {"text": captured} if text else {}
        click.echo(json.dumps({**msgspec.to_builtins(entry), **said}, ensure_ascii=True))
        return
    console(240).print(*render.parts(entry), sep="\n")
    for part in render.captured(captured) if text else ():
        console(240).print(part, soft_wrap=True)


@decisions.command("erase")
@click.option("--caller", help="Whose texts.")
@click.option("--before", type=Moment(), help="Only of requests before: 90d or an ISO time.")
@click.option("--id", "decision_id", help="The texts of one request.")
@click.option("--reason", required=True, help="Why; it is recorded.")
@_by
@_as_json
@log_url
def erase(
    caller: str | None,
    before: float | None,
    decision_id: str | None,
    reason: str,
    by: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Erase captured texts. Their records stay, and one of the erasure is added."""
    if caller is None and decision_id is None and before is None:
        raise click.UsageError("Say whose: --caller, --before or --id.")
    if decision_id is not None:
        decision_id = _find(url, decision_id).decision.decision_id
    audit = config.load().audit
    with as_bad_input():
        erased = texts.erase_texts(
            url or audit.url,
            audit,
            by=by,
            reason=reason,
            caller=caller,
            before=before,
            decision_id=decision_id,
        )
    if as_json:
        click.echo(json.dumps({"requests": erased.requests, "scrubbed": erased.is_scrubbed}))
        return
    click.echo(f"The texts of {erased.requests} requests are erased.")
    if not erased.is_scrubbed:
        click.echo(
            "A reader is in the way: decisions.db-wal may hold copies until it ends.", err=True
        )
    if (url or audit.url).startswith("postgresql"):
        click.echo("PostgreSQL keeps old copies until its (auto)vacuum of `texts`.", err=True)


@decisions.command("replay")
@click.argument("decision_id", metavar="ID")
@click.option("--body", type=click.Path(path_type=Path), help="The request's body, as it came.")
@click.option("--prompt-file", type=click.Path(path_type=Path), help="Its only message, as text.")
@click.option("--model", help="Another model than the configuration's.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="YAML file.")
@_by
@_as_json
@log_url
def replay(
    decision_id: str,
    body: Path | None,
    prompt_file: Path | None,
    model: str | None,
    config_path: Path | None,
    by: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Decode a request again in standard mode, and hold its tokens against the logged digest.

    Its text comes from the log where it was captured, else from --body, which has to be the very
    body that was sent, or from --prompt-file. Exits with 0 for equal tokens, with 1 for others, with
    2 where it cannot be done.
    """
    from gateway.cli import redecode

    if body is not None and prompt_file is not None:
        raise click.UsageError("Give --body or --prompt-file.")
    entry, settings = _find(url, decision_id), config.load(config_path)
    with as_bad_input():
        equal = redecode.replay(
            entry,
            settings,
            url=url or settings.audit.url,
            by=by,
            body=body,
            prompt_file=prompt_file,
            model=model,
            as_json=as_json,
        )
    if not equal:
        raise SystemExit(1)


@decisions.command("feedback")
@click.argument("decision_id", metavar="ID")
@click.option("--domain", "domains", type=click.Choice(DOMAINS), multiple=True, help="One of all.")
@click.option("--none", "none_of_them", is_flag=True, help="It belongs to none of the ten.")
@click.option("--note", default="", help=f"Free text, {MAX_NOTE_CHARACTERS} characters at most.")
@_by
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

    with as_bad_input():
        record = checked(found, domains, note, by=by, given_at=time.time())
        asyncio.run(append(record))
    click.echo(f"{render.plain(found)}: {', '.join(domains) or 'none of the ten'}")


def _find(url: str | None, decision_id: str) -> Entry:
    """The one entry with this id, or whose id begins so."""
    found = ask(url, lambda reader: reader.find(decision_id, limit=5))
    exact = [entry for entry in found if entry.decision.decision_id == decision_id]
    entries = exact or found
    if not entries:
        raise Missing(f"no decision {decision_id!r} is in the log")
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
