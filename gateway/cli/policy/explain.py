"""``draftgate policy explain``: what a policy decides for one request, and why.

Classifiers are built only when there is text to classify.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.policy.chosen import chosen_policy, file_argument, reader
from gateway.cli.policy.trace import trace_tree
from gateway.cli.printing import print_json
from gateway.cli.request_file import read_request
from gateway.documents import suggestion
from gateway.routing.decide import decide
from gateway.routing.explain import ConditionTrace
from gateway.routing.explain import explain as explain_conditions
from gateway.routing.facts import Facts
from gateway.routing.testing import given_signals
from gateway.types import DOMAINS, Caller, ChatRequest, Decision, Message, Mode, Signals


@click.command()
@file_argument
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
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A request header.")
@click.option(
    "--at",
    metavar="TIME",
    help="When the request comes, such as 2027-01-01T09:00Z; now if left out.",
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
    headers: tuple[str, ...],
    at: str | None,
    as_json: bool,
) -> None:
    """Show what a policy decides for one request, and what became of each of its conditions."""
    loaded = chosen_policy(file)
    request = _request(prompt, request_file, mode, signals is not None)
    request = msgspec.structs.replace(request, headers={**request.headers, **_headers(headers)})
    if signals is not None:
        domains = _domains(signals)
        measured = given_signals(domains, language=language, has_context=has_context)
    elif language is not None or has_context:
        raise click.UsageError("--language and --has-context go with --signals.")
    else:
        measured = reader()(request)
    asker, tokens, now = Caller(caller, team), sum(map(len, request.texts())) // 4, _time(at)
    decision = decide(loaded, measured, request, asker, prompt_tokens=tokens, now=now)
    conditions = explain_conditions(loaded, Facts(measured, request, asker, tokens, now))
    if as_json:
        by_rule = {rule.id: tree for rule, tree in zip(loaded.rules, conditions, strict=True)}
        print_json({"decision": decision, "signals": measured, "conditions": by_rule})
    else:
        _print_decision(decision, measured, conditions)


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"{text!r} is not NAME=VALUE.")
        headers[name.strip().lower()] = value
    return headers


def _time(text: str | None) -> datetime.datetime:
    if text is None:
        return datetime.datetime.now(datetime.UTC)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is no time such as 2027-01-01T09:00Z.") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)


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


def _print_decision(
    decision: Decision, signals: Signals, conditions: tuple[ConditionTrace | None, ...]
) -> None:
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
        "temperature": _temperature(decision),
        "max tokens": str(decision.limits.max_tokens or ""),
        "backend": decision.backend or "",
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
    console.print(trace_tree(decision.trace, conditions))


def _temperature(decision: Decision) -> str:
    fixed, cap = decision.limits.temperature, decision.limits.max_temperature
    parts = ("" if fixed is None else f"{fixed:g}", "" if cap is None else f"at most {cap:g}")
    return ", ".join(filter(None, parts))
