"""Tables and pictures of what was measured; writes them again from the JSON alone.

``python -m benchmarks.report`` renders every file in results and the table in README.md;
with ``--check`` it only says which of them are not what the JSON gives.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import runs
from benchmarks.runs import (
    ASSISTED,
    GENERATE,
    HYBRID,
    LOOKUP,
    SPECULATIVE,
    STANDARD,
    Measurement,
)
from benchmarks.summary import Exclusions, Figure, exclusions, figures, rates

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
README_RESULT = "prompts-cpu-float32"
_DECODING = "*-*-*.json"
"""PROMPTS-DEVICE-DTYPE; other results lie beside them."""
_README_ARMS = {
    GENERATE: "generate",
    LOOKUP: "prompt lookup",
    SPECULATIVE: "speculative",
    HYBRID: "hybrid",
}
_TABLE = re.compile(r"(<!-- benchmark -->\n).*?(<!-- /benchmark -->)", re.DOTALL)


def markdown(measurement: Measurement) -> str:
    """The whole report of one measurement."""
    lines = [_headline(measurement), ""]
    found = figures(measurement)
    for temperature in dict.fromkeys(figure.temperature for figure in found):
        lines += [f"## Temperature {temperature:g}", ""]
        lines += _figure_table([one for one in found if one.temperature == temperature])
        lines.append("")
    if measurement.throughput:
        lines += ["## Many at once", "", *_rate_table(measurement), ""]
    lines += ["## What does not count", "", *_exclusion_lines(measurement)]
    return "\n".join(lines) + "\n"


def readme_table(measurement: Measurement) -> str:
    """The short table: at temperature 0, one row for each group.

    Speed over standard mode by arm, and the tokens that a forward pass gives with suffix drafts.
    """
    found = [figure for figure in figures(measurement) if figure.temperature == 0]
    cell = {(figure.group, figure.arm): figure for figure in found}
    head = ["prompts", "standard, tokens/s", *_README_ARMS.values(), "tokens per pass"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for group in dict.fromkeys(figure.group for figure in found):
        row = [_title(group), f"{cell[group, STANDARD].tokens_per_second:.1f}"]
        for arm in _README_ARMS:
            one = cell.get((group, arm))
            row.append(f"{one.ratio.median:.2f}x" if one else "–")
        drafted = cell.get((group, SPECULATIVE))
        row.append(f"{drafted.mean_acceptance_length:.2f}" if drafted else "–")
        lines.append(f"| {' | '.join(row)} |")
    picture = f"![Speed by group](benchmarks/results/{README_RESULT}.svg)"
    return "\n".join([_headline(measurement), "", *lines, "", picture]) + "\n"


def with_table(text: str, measurement: Measurement | None) -> str:
    """README's text with the table of ``measurement`` between its marks; without one, with nothing."""
    table = readme_table(measurement) if measurement else ""
    changed, count = _TABLE.subn(lambda match: match[1] + table + match[2], text)
    if count != 1:
        raise ValueError("README.md needs <!-- benchmark --> and <!-- /benchmark --> once")
    return changed


def write(path: Path) -> None:
    """The report and the picture beside the JSON at ``path``."""
    from benchmarks.plot import draw  # a check of the tables does not need it

    measurement = runs.read(path)
    path.with_suffix(".md").write_text(markdown(measurement), encoding="utf-8")
    first = min((run.temperature for run in measurement.runs), default=0.0)
    shown = [figure for figure in figures(measurement) if figure.temperature == first]
    if shown:
        options, environment = measurement.options, measurement.environment
        title = (
            f"{options['model']}, {options['dtype']}, {environment['device']}, "
            f"temperature {first:g}: median, 10–90 % of prompts"
        )
        draw(shown, path.with_suffix(".svg"), title)


def stale(results: Path = RESULTS, readme: Path = README) -> list[str]:
    """The files that are not what the JSON gives."""
    found = []
    for path in sorted(results.glob(_DECODING)):
        report = path.with_suffix(".md")
        if not report.is_file() or report.read_text("utf-8") != markdown(runs.read(path)):
            found.append(str(report))
    text = readme.read_text(encoding="utf-8")
    return found if with_table(text, _shown(results)) == text else [*found, str(readme)]


def main() -> None:
    """Render everything again, or check that nothing needs it."""
    parser = argparse.ArgumentParser(description="Render the benchmark's tables from its JSON.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    if parser.parse_args().check:
        found = stale()
        if found:
            sys.exit(
                f"not what the JSON gives: {', '.join(found)}\nrun: python -m benchmarks.report"
            )
        return
    for path in sorted(RESULTS.glob(_DECODING)):
        write(path)
    README.write_text(with_table(README.read_text("utf-8"), _shown(RESULTS)), encoding="utf-8")


def _shown(results: Path) -> Measurement | None:
    path = results / f"{README_RESULT}.json"
    return runs.read(path) if path.is_file() else None


def _title(group: str) -> str:
    return group.replace("_", " ")


def _headline(measurement: Measurement) -> str:
    options, environment = measurement.options, measurement.environment
    where = environment["device"]
    if where == "cpu":
        where = f"{environment['processor']}, {environment['threads']} threads"
    rounds = options["rounds"]
    return (
        f"{options['model']}, {options['dtype']}, {where}; at most {options['tokens']} tokens, "
        f"{rounds} round{'s' if rounds != 1 else ''}, commit {environment['commit'] or 'unknown'}, "
        f"{environment['date']}."
    )


def _figure_table(found: Sequence[Figure]) -> list[str]:
    lines = [
        "| prompts | arm | answers | tokens/s | without prefill | of standard (10–90 %) "
        "| without prefill | of prompt lookup | mean acceptance length | acceptance rate |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in found:
        mark = "" if one.comparable else " \\*"
        lookup = f"{one.ratio_to_lookup:.2f}x" if one.ratio_to_lookup is not None else "–"
        rate = f"{one.acceptance_rate:.0%}" if one.acceptance_rate is not None else "–"
        lines.append(
            f"| {_title(one.group)} | {one.arm}{mark} | {one.prompts} "
            f"| {one.tokens_per_second:.1f} | {one.decode_tokens_per_second:.1f} "
            f"| {one.ratio.median:.2f}x ({one.ratio.low:.2f}–{one.ratio.high:.2f}) "
            f"| {one.decode_ratio:.2f}x | {lookup} | {one.mean_acceptance_length:.2f} | {rate} |"
        )
    if not all(one.comparable for one in found):
        lines += ["", "\\* not comparable by text: another sampler draws other tokens."]
    return lines


def _rate_table(measurement: Measurement) -> list[str]:
    found = rates(measurement.throughput)
    lines = [
        f"The same {found[0].requests} requests, tokens per second of all together.",
        "",
        "| temperature | at once | arm | tokens/s | of standard | mean acceptance length "
        "| acceptance rate | equal answers |",
        "|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for one in found:
        mark = " (disturbed)" if one.disturbed else ""
        # The speed of other text would say nothing.
        ratio = f"{one.ratio:.2f}x" if one.equal == one.requests else "–"
        accepted = f"{one.acceptance_rate:.0%}" if one.acceptance_rate is not None else "–"
        lines.append(
            f"| {one.temperature:g} | {one.concurrency}{mark} | {one.arm} "
            f"| {one.tokens_per_second:.1f} | {ratio} | {one.mean_acceptance_length:.2f} "
            f"| {accepted} | {one.equal} of {one.requests} |"
        )
    return lines


def _exclusion_lines(measurement: Measurement) -> list[str]:
    lines = [
        "| temperature | arm | answers | other tokens than standard | loops | under 8 tokens | disturbed |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    found = exclusions(measurement)
    for one in found:
        different = str(len(one.different)) if _held(one) else "not comparable"
        lines.append(
            f"| {one.temperature:g} | {one.arm} | {one.answers} | {different} | {len(one.loops)} "
            f"| {len(one.short)} | {len(one.disturbed)} |"
        )
    names = sorted({name for one in found for name in one.different})
    lines += ["", f"Other tokens than standard mode's: {', '.join(names) or 'none'}."]
    if measurement.left_out:
        left_out = ", ".join(f"{name} ({why})" for name, why in measurement.left_out.items())
        lines += ["", f"Not measured: {left_out}."]
    reference = measurement.environment.get("reference_seconds")
    if reference:
        lines += [
            "",
            f"The reference took {reference['median'] * 1000:.0f} ms "
            f"({reference['least'] * 1000:.0f}–{reference['most'] * 1000:.0f}).",
        ]
    return lines


def _held(one: Exclusions) -> bool:
    return one.temperature == 0 or one.arm not in (GENERATE, LOOKUP, ASSISTED)


if __name__ == "__main__":
    main()
