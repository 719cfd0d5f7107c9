"""How a terminal shows what was measured of a classifier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gateway.classification.card import Evaluation
from gateway.classification.evaluation import DomainReport, Group, Report
from gateway.classification.intervals import Rate
from gateway.cli.entries import plain
from gateway.cli.printing import console, print_json
from gateway.types import DOMAINS, SHORT_HASH_LENGTH

_BAR_WIDTH = 24


def show(evaluation: Evaluation, as_json: bool) -> None:
    """Print it for a program or for a person."""
    if as_json:
        print_json(evaluation)
        return
    console().print(*_evaluation(evaluation), sep="\n")


def percent(rate: Rate) -> str:
    """The share and its 95 % interval."""
    return f"{rate.share:.3f} ({rate.low:.3f}–{rate.high:.3f})"


def table(*headings: str, left: int = 1) -> Table:
    """A plain table; the first ``left`` columns hold words, the others numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for at, heading in enumerate(headings):
        made.add_column(heading, justify="left" if at < left else "right", no_wrap=at >= left)
    return made


def _evaluation(evaluation: Evaluation) -> Iterator[RenderableType]:
    report = evaluation.report
    how = "held out" if evaluation.held_out else "by the classifier itself"
    yield Text(
        f"{report.rows} rows, {evaluation.classifier} "
        f"{evaluation.classifier_hash[:SHORT_HASH_LENGTH]} ({how}), bars of {evaluation.policy}",
        style="bold",
    )
    yield _domains(report.domains)
    yield Text(
        f"macro-F1 {report.macro_f1:.3f} at 0.5, top domain right {percent(report.top_is_right)}"
    )
    guard = report.guard
    yield Text(
        f"{' or '.join(guard.domains)}: recall {percent(guard.recall)} of {guard.recall.rows}, "
        f"false bans {percent(guard.false_bans)} of {guard.false_bans.rows}"
    )
    for domain in report.domains:
        if domain.domain in guard.domains:
            yield Text(
                f"\nreliability of {domain.domain}, expected calibration error "
                f"{domain.calibration_error:.3f}",
                style="bold",
            )
            yield _reliability(domain)
    yield Text("\nfirst domain of the label, down; most probable domain, across", style="bold")
    yield _confusion(report)
    for name, groups in (
        ("language", report.languages),
        ("slice", report.slices),
        ("source", report.sources),
    ):
        if len(groups) > 1:
            yield Text("")
            yield _groups(name, groups)
    if report.mistakes:
        yield Text("\nworst mistakes", style="bold")
        yield _mistakes(report)


def _domains(reports: Sequence[DomainReport]) -> Table:
    made = table(
        *("domain", "rows", "bar", "recall (95 %)", "precision", "false alarms", "F1", "AP", "ECE")
    )
    for one in reports:
        made.add_row(
            one.domain,
            str(one.rows),
            f"≥ {one.threshold:.4g}" if one.banned else f"({one.threshold:g})",
            percent(one.recall),
            percent(one.precision),
            percent(one.false_alarms),
            f"{one.f1:.3f}",
            f"{one.average_precision:.3f}",
            f"{one.calibration_error:.3f}",
        )
    return made


def _reliability(report: DomainReport) -> Table:
    made = table("probability", "rows", "mean", "positive", "")
    made.columns[-1].justify = "left"
    for one in report.bins:
        bar = "█" * round(one.positive * _BAR_WIDTH)
        # The mark stands where a calibrated bar would end.
        at = min(round(one.mean_probability * _BAR_WIDTH), _BAR_WIDTH - 1)
        drawn = "".join("│" if i == at else c for i, c in enumerate(f"{bar:·<{_BAR_WIDTH}}"))
        cells = (f"{one.mean_probability:.3f}", f"{one.positive:.3f}", drawn)
        made.add_row(
            f"{one.low:.1f}–{one.high:.1f}", str(one.rows), *(cells if one.rows else ("", "", ""))
        )
    return made


def _confusion(report: Report) -> Table:
    made = table("", *(domain[:9] for domain in DOMAINS))
    for true, found in report.confusion.items():
        cells = [str(found[domain] or "·") for domain in DOMAINS]
        made.add_row(Text(true, style="bold"), *cells)
    return made


def _groups(name: str, groups: Sequence[Group]) -> Table:
    made = table(name, "rows", "recall (95 %)", "of", "false bans (95 %)", "of")
    for one in groups:
        recall, false_bans = one.recall, one.false_bans
        made.add_row(
            Text(plain(one.name)),
            str(one.rows),
            percent(recall) if recall.rows else "-",
            str(recall.rows),
            percent(false_bans) if false_bans.rows else "-",
            str(false_bans.rows),
        )
    return made


def _mistakes(report: Report) -> Table:
    made = table("kind", "domain", "labelled", "row", "probability", left=4)
    made.add_column("where")
    for one in report.mistakes:
        where = " ".join(filter(None, (one.lang, one.slice, one.source)))
        text = f"\n{one.text}" if one.text is not None else ""
        made.add_row(
            one.kind.replace("_", " "),
            one.domain,
            " ".join(one.domains) or "none",
            Text(plain(one.id or f"#{one.row}")),
            f"{one.probability:.4f}",
            Text(plain(where) + "\n".join(map(plain, text.split("\n")))),
        )
    return made
