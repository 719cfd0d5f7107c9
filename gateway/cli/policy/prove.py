"""``draftgate policy prove``: what is so for every request there can be, or a request against it."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gateway import config
from gateway.cli.policy.chosen import chosen_policy, file_argument
from gateway.cli.policy.requests import print_case
from gateway.cli.policy.trace import trace_table
from gateway.cli.printing import print_json
from gateway.routing.analysis import Analysis, analyse
from gateway.routing.files import PROOFS, beside
from gateway.routing.proofs import ProofReport, Verdict, run


@click.command()
@file_argument
@click.option(
    "--statements",
    type=click.Path(path_type=Path),
    metavar="PROOF.yaml",
    help="The statements; by default the _proof.yaml file beside the policy.",
)
@click.option("--analysis", "only_analysis", is_flag=True, help="Prove no statements.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def prove(file: Path | None, statements: Path | None, only_analysis: bool, as_json: bool) -> None:
    """Prove the statements beside a policy, and name the rules that have no effect.

    Exits with 0 when every statement is proved, 1 when one is not, 2 when a file is missing or
    wrong, or the policy too large to prove anything about.
    """
    if only_analysis and statements is not None:
        raise click.UsageError("--analysis goes without --statements.")
    loaded = chosen_policy(file)
    report = None
    if not only_analysis:
        backends = config.load().backends if file is None else None
        path = statements or beside(Path(loaded.path), PROOFS)
        report = run(loaded, path, backends=backends)
    analysis = analyse(loaded)
    proved = report is None or report.proved
    if as_json:
        content = {} if report is None else msgspec.to_builtins(report)
        print_json({"proved": proved, **content, "analysis": analysis})
    else:
        console = Console()
        if report is not None:
            _print_report(console, report)
        _print_analysis(console, analysis)
    if not proved:
        raise SystemExit(1)


def _print_report(console: Console, report: ProofReport) -> None:
    for verdict in report.verdicts:
        if not verdict.proved:
            _print_failure(console, verdict)
    proved = sum(verdict.proved for verdict in report.verdicts)
    cells = sum(verdict.cells for verdict in report.verdicts)
    style = "green" if report.proved else "red"
    words = f"{proved} of {len(report.verdicts)} statements proved, over {cells} kinds of requests."
    console.print(Text(words, style=style), soft_wrap=True)


def _print_failure(console: Console, verdict: Verdict) -> None:
    example = verdict.counterexample
    if example is None:
        message = f"SAYS NOTHING  {verdict.name}: no request meets its conditions"
        console.print(Text(message, style="red"), soft_wrap=True)
        return
    console.print(Text(f"FALSE  {verdict.name}", style="red"), soft_wrap=True)
    print_case(console, example.case, example.assumes)
    console.print(trace_table(example.decision.trace))


def _print_analysis(console: Console, analysis: Analysis) -> None:
    for rule in analysis.dead_rules:
        words = {
            "unreachable": "its conditions never hold together",
            "shadowed": f"always comes after {' or '.join(rule.by)}",
            "banned": f"its mode is banned wherever it would decide, by {' or '.join(rule.by)}",
        }
        message = f"Without effect: {rule.rule}: {words[rule.why]}."
        console.print(Text(message, style="yellow"), soft_wrap=True)
    for always, says in ((True, "no rule decides, only default"), (False, "default may decide")):
        domains = [gap.domain for gap in analysis.gaps if gap.always is always]
        if domains:
            message = f"Of these domains alone {says}: {', '.join(domains)}."
            console.print(Text(message), soft_wrap=True)
