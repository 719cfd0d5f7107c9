"""How a sweep is shown: its table, and its chart."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.experiments import chart
from gateway.experiments.bench import Bench, Line, Percentiles
from gateway.experiments.chart import Mark, draw
from gateway.experiments.grid import Grid, figure


def grids(bench: Bench) -> tuple[Grid, ...]:
    """One table; times in milliseconds."""
    return (
        Grid(
            title=f"{bench.target}, {bench.model}",
            headings=(
                *("arm", "ran as", "at once", "answers", "failed", "first token p50", "p90", "p99"),
                *("a token p50", "p90", "p99", "whole p50", "p90", "p99", "tokens/s"),
            ),
            rows=tuple(_row(line) for line in bench.lines),
            notes=tuple(_notes(bench)),
        ),
    )


def plot(bench: Bench) -> str:
    """Tokens a second by number at once."""
    arms = list(dict.fromkeys(line.arm for line in bench.lines))
    widths = list(dict.fromkeys(line.concurrency for line in bench.lines))
    lines = [
        chart.Line(
            f"{width} at once",
            tuple(
                Mark(arms.index(line.arm), line.tokens_per_second)
                for line in bench.lines
                if line.concurrency == width
            ),
        )
        for width in widths
    ]
    return draw(f"Tokens a second: {bench.model}", "tokens a second, all answers", arms, lines)


def _row(line: Line) -> tuple[str, ...]:
    modes = ", ".join(
        f"{mode} {count}" if len(line.modes) > 1 else mode for mode, count in line.modes.items()
    )
    return (
        line.arm,
        modes or "–",
        f"{line.concurrency}",
        f"{line.answers}",
        f"{line.failed}",
        *_milliseconds(line.first_token),
        *_milliseconds(line.inter_token),
        *_milliseconds(line.total),
        f"{line.tokens_per_second:.1f}",
    )


def _milliseconds(found: Percentiles) -> tuple[str, ...]:
    return tuple(
        figure(None if value is None else 1e3 * value, ".1f")
        for value in (found.p50, found.p90, found.p99)
    )


def _notes(bench: Bench) -> Iterator[str]:
    yield (
        "Milliseconds. A token: after the first, answer by answer; one pass can give several at once, and "
        "summary.json has the gaps between pieces."
    )
    if len(bench.lines) < bench.planned:
        yield (
            f"Interrupted: {len(bench.lines)} of {bench.planned} lines are there. The same command with "
            "the same --out goes on."
        )
    for line in bench.lines:
        for error in line.errors:
            yield f"{line.arm}, {line.concurrency} at once, failed {error}"
