"""How the matrix is shown: the article's table with measured figures, and its chart."""

from __future__ import annotations

import msgspec

from gateway.experiments.chart import Line, Mark, draw
from gateway.experiments.grid import Grid, figure
from gateway.experiments.matrix import Measured
from gateway.experiments.suggestion import Suggestion


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found."""

    blocks: int
    planned: int
    """Fewer blocks than were planned: the run was interrupted."""
    policy: str
    """The policy in force."""
    alpha: float
    measured: tuple[Measured, ...]
    suggestions: tuple[Suggestion, ...]
    notes: tuple[str, ...] = ()


def grids(matrix: Matrix) -> tuple[Grid, ...]:
    """Measurements, then suggestions."""
    rows = tuple(
        (
            one.domain or "–",
            one.arm,
            f"{one.prompts}",
            figure(one.acceptance_rate, ".0%"),
            figure(one.mean_acceptance_length, ".2f"),
            _speed(one),
            f"{one.equal.hits} of {one.equal.rows}",
            figure(one.log10_e, "+.2f"),
            "sound" if one.sound else "UNSOUND",
            ", ".join(f"{count} {reason}" for reason, count in one.left_out.items()) or "–",
        )
        for one in matrix.measured
    )
    found = Grid(
        title="Measured",
        headings=(
            *("domain", "arm", "prompts", "accepted", "tokens a pass", "speed-up (95 %)"),
            *("equal", "log10 e", "evidence", "left out"),
        ),
        rows=rows,
        notes=tuple(_notes(matrix)),
    )
    suggested = Grid(
        title="Suggested",
        headings=("domain", "mode", "because"),
        rows=tuple((one.domain, one.mode.value, one.reason) for one in matrix.suggestions),
        left=3,
        notes=(f"Held against the policy in force, {matrix.policy}.", *matrix.notes),
    )
    return found, suggested


def chart(matrix: Matrix) -> str:
    """The speed-up of each arm by domain."""
    arms = list(dict.fromkeys(one.arm for one in matrix.measured))
    domains = list(dict.fromkeys(one.domain for one in matrix.measured))
    lines = [
        Line(
            domain or "no domain",
            tuple(
                Mark(arms.index(one.arm), one.speedup.mean, one.speedup.low, one.speedup.high)
                for one in matrix.measured
                if one.domain == domain and one.speedup is not None
            ),
        )
        for domain in domains
    ]
    return draw(
        "Speed-up over standard mode",
        "tokens per second, of standard mode",
        arms,
        lines,
        reference=1.0,
    )


def _speed(one: Measured) -> str:
    if one.speedup is None:
        return "–"
    if one.speedup.low is None or one.speedup.high is None:
        return f"{one.speedup.mean:.2f}x"
    return f"{one.speedup.mean:.2f}x ({one.speedup.low:.2f} to {one.speedup.high:.2f})"


def _notes(matrix: Matrix) -> list[str]:
    notes = []
    if matrix.blocks < matrix.planned:
        notes.append(
            f"Interrupted: {matrix.blocks} of {matrix.planned} blocks are there. The same command with "
            "the same --out goes on."
        )
    if any(one.prompts < 2 for one in matrix.measured):
        notes.append("An interval needs two prompts of a domain whose answers count, better ten.")
    return notes
