"""``draftgate policy``: check a policy file, run its tests, and explain what it would decide.

Exit codes: 0 all is well, 1 a test failed, 2 the input is wrong (ConfigError, which the group
above turns into a message). Classifiers are built only when there is text to classify.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway import config
from gateway.cli.request_file import read_request
from gateway.cli.signals import SignalReader
from gateway.documents import suggestion
from gateway.routing.decide import decide
from gateway.routing.policy import Policy, load
from gateway.routing.testing import Report, given_signals, path_beside, run
from gateway.types import (
    DOMAINS,
    Caller,
    ChatRequest,
    Decision,
    Message,
    Mode,
    RuleTrace,
    Signals,
)

_file = click.argument(
    "file", type=click.Path(path_type=Path), required=False, metavar="[POLICY.yaml]"
)


@click.group()
def policy() -> None:
    """Check, test and explain policies. Without a file: the one that the configuration names."""


@policy.command()
@_file
def validate(file: Path | None) -> None:
    """Check a policy file and name every problem with its line and column."""
    loaded = _load(file)
    bans = sum(rule.kind == "ban" for rule in loaded.rules)
    click.echo(
        f"{loaded.path}: ok. Policy {loaded.name}, {loaded.version}: "
        f"{len(loaded.rules)} rules, {bans} of them bans."
    )


@policy.command()
@_file
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def test(file: Path | None, as_json: bool) -> None:
    """Run the cases in the _test.yaml file beside a policy; exit with 1 when one fails."""
    loaded = _load(file)
    report = run(loaded, path_beside(Path(loaded.path)), _reader())
    if as_json:
        _print_json({"passed": report.passed, **msgspec.to_builtins(report)})
    else:
        _print_report(report, loaded)
    if not report.passed:
        raise SystemExit(1)


@policy.command()
@_file
@click.option("--prompt", help="The text of a request with one user turn.")
@click.option(
    "--request", "request_file", type=click.Path(path_type=Path), help="A JSON request body."
)
@click.option(
    "--signals", help="Domain probabilities in place of a classifier: medical=0.9,code=0.2"
)
@click.option("--language", help="The language signal, as an ISO 639-1 code (with --signals).")
@click.option(
    "--has-context", is_flag=True, help="The request carries its source (with --signals)."
)
@click.option("--caller", default="anonymous", help="Who asks.")
@click.option("--team", help="The caller's team.")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    help="The mode that the caller asks for.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the decision as JSON.")
def explain(
    file: Path | None,
    prompt: str | None,
    request_file: Path | None,
    signals: str | None,
    language: str | None,
    has_context: bool,
    caller: str,
    team: str | None,
    mode: str | None,
    as_json: bool,
) -> None:
    """Show what a policy decides for one request, and what became of each of its rules."""
    loaded = _load(file)
    request = _request(prompt, request_file, mode, signals is not None)
    if signals is not None:
        domains = _domains(signals)
        measured = given_signals(domains, language=language, has_context=has_context)
    elif language is not None or has_context:
        raise click.UsageError("--language and --has-context go with --signals.")
    else:
        measured = _reader()(request)
    decision = decide(
        loaded,
        measured,
        request,
        Caller(caller, team),
        prompt_tokens=sum(map(len, request.texts())) // 4,
        now=datetime.datetime.now(datetime.UTC),
    )
    if as_json:
        _print_json({"decision": decision, "signals": measured})
    else:
        _print_decision(decision, measured)


def _reader() -> SignalReader:
    return SignalReader(config.load().classifiers)


def _load(file: Path | None) -> Policy:
    """The policy in ``file``, or the configured one, held against the configured backends."""
    if file is not None:
        return load(file)
    settings = config.load()
    return load(settings.policy or config.default_policy_path(), backends=settings.backends)


def _request(
    prompt: str | None, request_file: Path | None, mode: str | None, has_signals: bool
) -> ChatRequest:
    if prompt is not None and request_file is not None:
        raise click.UsageError("Give --prompt or --request, not both.")
    if prompt is None and request_file is None and not has_signals:
        raise click.UsageError('Give --prompt "text", --request FILE.json or --signals code=0.9.')
    if request_file is not None:
        request = read_request(request_file)
    else:
        request = ChatRequest(model="any", messages=(Message("user", prompt or ""),))
    wish = Mode(mode) if mode is not None else None
    return msgspec.structs.replace(request, requested_mode=wish)


def _domains(text: str) -> dict[str, float]:
    domains: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in DOMAINS:
            raise click.UsageError(f"Unknown domain {name!r} ({suggestion(name, DOMAINS)}).")
        try:
            domains[name] = float(value)
        except ValueError:
            raise click.UsageError(f"{part!r} is not NAME=PROBABILITY.") from None
        if not 0 <= domains[name] <= 1:
            raise click.UsageError(f"The probability of {name} must be from 0 to 1, not {value}.")
    return domains


def _print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def _print_report(report: Report, loaded: Policy) -> None:
    console = Console()
    for result in report.results:
        if not result.passed:
            console.print(Text(f"FAILED  {result.name}", style="red"))
            for line in result.differences:
                console.print(Text(f"        {line}"))
            if result.decision is not None:
                if result.decision.reason:
                    console.print(Text(f"        because: {result.decision.reason}"))
                console.print(_trace_table(result.decision.trace))
    passed = sum(result.passed for result in report.results)
    console.print(
        Text(
            f"{passed} of {len(report.results)} cases passed; "
            f"{len(loaded.rules) - len(report.uncovered)} of {len(loaded.rules)} rules covered.",
            style="green" if report.passed else "red",
        )
    )
    if report.uncovered:
        console.print(Text(f"No case reaches: {', '.join(report.uncovered)}", style="yellow"))


def _print_decision(decision: Decision, signals: Signals) -> None:
    console = Console()
    facts = Table.grid(padding=(0, 2))
    draft = decision.draft
    rows = {
        "mode": decision.mode.value,
        "rule": decision.rule,
        "reason": decision.reason,
        "denied": decision.deny or "",
        "forced by": decision.forced_by or "",
        "verifier": decision.verifier,
        "max distortion": "" if decision.max_distortion is None else f"{decision.max_distortion:g}",
        "draft": f"{draft.source}, {draft.num_speculative_tokens} tokens at most" if draft else "",
        "standard first": str(decision.standard_first or ""),
        "content tokens": decision.content_tokens.value if decision.mode is Mode.HYBRID else "",
        "max entropy": f"{decision.max_entropy:g} nats" if decision.max_entropy else "",
        "bans": ", ".join(f"{mode} by {rule}" for mode, rule in decision.bans.items()),
        "policy": f"{decision.policy} {decision.policy_version}",
        "signals": ", ".join(
            f"{item.value} {item.score:.2f}"
            for item in sorted(signals.items, key=lambda item: -item.score)
            if item.name == "domain" and item.score >= 0.01
        ),
    }
    for name, value in rows.items():
        if value:
            facts.add_row(Text(name, style="bold"), Text(value))
    console.print(facts)
    console.print(_trace_table(decision.trace))


def _trace_table(trace: tuple[RuleTrace, ...]) -> Table:
    table = Table(box=None, padding=(0, 2))
    for heading in ("rule", "kind", "matched", "why"):
        table.add_column(heading, overflow="fold")
    for rule in trace:
        style = "bold" if rule.matched else "dim"
        matched = "yes" if rule.matched else "no"
        cells = (rule.rule, rule.kind, matched, rule.detail)
        table.add_row(*(Text(cell, style=style) for cell in cells))
    return table
