"""``draftgate upstream``: tries servers of other engines before they are trusted."""

from __future__ import annotations

import asyncio

import click
from rich.markup import escape
from rich.table import Table

from gateway import config
from gateway.backends.openai.checking import Report, check_server
from gateway.cli.asking import BadInput
from gateway.cli.entries import plain
from gateway.cli.printing import console, print_json
from gateway.cli.progress import count_progress

_COLOURS = {"ok": "green", "failed": "red", "near_tie": "yellow", "unknown": "yellow"}


@click.group()
def upstream() -> None:
    """Try servers of other engines before they are trusted."""


@upstream.command("check")
@click.argument("url")
@click.option("--model", required=True, help="What the server calls the model.")
@click.option("--against", "twin", help="URL of a twin without speculation, to be compared with.")
@click.option("--api-key-env", help="The environment variable with the API key, of both.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def check(url: str, model: str, twin: str | None, api_key_env: str | None, as_json: bool) -> None:
    """Ask the server at URL what is known to go wrong when engines speculate.

    Exits with 1 when a check failed. It takes some hundred short answers.
    """
    for each in filter(None, (url, twin)):
        if not each.startswith(("http://", "https://")):
            raise BadInput(f"{each!r} is no URL; write http://HOST:PORT")
    key = _key(api_key_env)
    with count_progress("checking") as progress:
        report = asyncio.run(check_server(url, model, key=key, twin=twin, progress=progress))
    if as_json:
        print_json({"failed": report.failed, **_plain(report)})
    else:
        console().print(*_parts(report), sep="\n")
    if report.failed:
        raise click.exceptions.Exit(1)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = config.environment().get(variable)
    if not key:
        raise BadInput(f"the environment has no {variable}; set it, or leave --api-key-env out")
    return key


def _plain(report: Report) -> dict[str, object]:
    return {
        "url": report.url,
        "model": report.model,
        "kind": report.finding.kind,
        "speculates": report.has_drafted,
        "attested_by": _attested_by(report),
        "max_length": report.finding.max_length,
        "results": report.results,
    }


def _attested_by(report: Report) -> str:
    return "server-metrics" if report.finding.attests else "config-only"


def _parts(report: Report) -> list[str | Table]:
    seen = "speculates" if report.has_drafted else "has drafted nothing"
    if not report.finding.attests:
        seen = "does not show whether it speculates"
    head = f"{report.url}: {report.finding.kind}, {seen} ({_attested_by(report)})"
    table = Table("check", "", "what was seen", box=None, pad_edge=False)
    for result in report.results:
        colour = _COLOURS[result.verdict]
        table.add_row(result.check, f"[{colour}]{result.verdict}[/]", escape(plain(result.detail)))
    return [escape(plain(head)), table]
