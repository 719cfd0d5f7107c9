"""``draftgate policy test``: run the cases beside a policy and say which rules they reach."""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gateway.cli.policy.chosen import chosen_policy, file_argument, reader
from gateway.cli.policy.trace import trace_table
from gateway.cli.printing import print_json
from gateway.routing.files import TESTS, beside
from gateway.routing.testing import CaseResult, Report, run


@click.command()
@file_argument
@click.option("--run", "only", metavar="REGEX", help="Only cases whose name has a match.")
@click.option("--verbose", "-v", is_flag=True, help="Name the cases that pass, too.")
@click.option("--fail-on-empty", is_flag=True, help="Fail when no case was run.")
@click.option(
    "--coverage-min",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Fail when passing cases reach fewer of the rules.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def test(
    file: Path | None,
    only: str | None,
    verbose: bool,
    fail_on_empty: bool,
    coverage_min: float | None,
    as_json: bool,
) -> None:
    """Run the cases in the _test.yaml file beside a policy (set_test.yaml in a folder).

    Exits with 0 when all hold, 1 when one fails, when there is less coverage than asked for, or no
    case with --fail-on-empty; 2 when a file is missing or wrong.
    """
    loaded = chosen_policy(file)
    report = run(loaded, beside(Path(loaded.path), TESTS), reader(), only=_pattern(only))
    complaints = _complaints(report, fail_on_empty, coverage_min)
    if as_json:
        passed = report.passed and not complaints
        content = msgspec.to_builtins(report)
        print_json(
            {"passed": passed, "coverage": report.coverage, "complaints": complaints, **content}
        )
    else:
        _print_report(report, complaints, verbose)
    if complaints or not report.passed:
        raise SystemExit(1)


def _pattern(only: str | None) -> str | None:
    try:
        re.compile(only or "")
    except re.error as error:
        raise click.UsageError(f"--run is no regular expression: {error}.") from None
    return only


def _complaints(report: Report, fail_on_empty: bool, coverage_min: float | None) -> list[str]:
    complaints = []
    if fail_on_empty and not report.results:
        complaints.append("no case was run")
    if coverage_min is not None and 100 * report.coverage < coverage_min:
        complaints.append(f"coverage {report.coverage:.0%} is below {coverage_min:g}%")
    return complaints


def _print_report(report: Report, complaints: list[str], verbose: bool) -> None:
    console = Console()
    if verbose or not report.passed:
        console.print(Text(f"{report.path}:"))
    for result in report.results:
        if not result.passed:
            _print_failure(console, result)
        elif verbose:
            console.print(Text(f"  {result.name}: PASS ({1e6 * result.seconds:.0f} µs)"))
    covered = report.rules - len(report.uncovered)
    passed = sum(result.passed for result in report.results)
    fine = report.passed and not complaints
    console.print(
        Text(
            f"{passed} of {len(report.results)} cases passed; "
            f"{covered} of {report.rules} rules covered.",
            style="green" if fine else "red",
        )
    )
    if report.uncovered:
        console.print(Text(f"No case reaches: {', '.join(report.uncovered)}", style="yellow"))
    for complaint in complaints:
        console.print(Text(f"FAIL: {complaint}", style="red"))


def _print_failure(console: Console, result: CaseResult) -> None:
    console.print(Text(f"  {result.name}: FAIL ({1e6 * result.seconds:.0f} µs)", style="red"))
    for line in result.differences:
        console.print(Text(f"    {line}"))
    if result.decision is not None:
        if result.decision.reason:
            console.print(Text(f"    because: {result.decision.reason}"))
        console.print(trace_table(result.decision.trace))
