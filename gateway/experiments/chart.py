"""A chart as SVG text: one line for each thing, a mark for each series, with its interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

import msgspec

# Read on white and on black alike, and told apart without colour vision.
_INK, _COLOURS = "#7d8590", ("#2f81f7", "#d98c00", "#2da44e", "#bf5af2", "#e5534b")
_LEFT, _WIDTH, _STEP, _TOP = 240, 420, 22, 54


class Mark(msgspec.Struct, frozen=True):
    """One value of one series."""

    series: int
    value: float
    low: float | None = None
    high: float | None = None


class Line(msgspec.Struct, frozen=True):
    """One line of the chart."""

    label: str
    marks: tuple[Mark, ...]


def draw(
    title: str,
    axis: str,
    series: Sequence[str],
    lines: Sequence[Line],
    *,
    reference: float | None = None,
) -> str:
    """The chart, with the axis from 0; ``reference`` is marked. The same values give the same text."""
    values = [
        v for line in lines for m in line.marks for v in (m.value, m.low, m.high) if v is not None
    ]
    top = _rounded_up(max([*values, reference or 0.0, 1e-9]))
    height = _TOP + _STEP * max(len(lines), 1) + 44
    width = _LEFT + _WIDTH + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="{_INK}" '
        f'role="img"><title>{escape(title)}</title>',
        f'<text x="{_LEFT}" y="18" font-size="13">{escape(title)}</text>',
        *_legend(series),
        *_axis(axis, top, height),
    ]
    if reference is not None:
        at = _place(reference, top)
        parts.append(f'<path d="M{at:.1f} {_TOP - 8}V{height - 40}" stroke="{_INK}" fill="none"/>')
    for number, line in enumerate(lines):
        parts += _line(line, _TOP + _STEP * number + 8, top, len(series))
    return "\n".join([*parts, "</svg>", ""])


def _place(value: float, top: float) -> float:
    return _LEFT + _WIDTH * min(max(value, 0.0), top) / top


def _legend(series: Sequence[str]) -> Iterator[str]:
    at = float(_LEFT)
    for number, name in enumerate(series):
        yield _shape(number, at + 5, 34)
        yield f'<text x="{at + 14:g}" y="38">{escape(name)}</text>'
        at += 30 + 6.2 * len(name)


def _axis(axis: str, top: float, height: int) -> Iterator[str]:
    bottom = height - 40
    yield f'<path d="M{_LEFT} {bottom}H{_LEFT + _WIDTH}" stroke="{_INK}" fill="none"/>'
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = _LEFT + _WIDTH * share
        yield f'<path d="M{at:g} {bottom}v4" stroke="{_INK}" fill="none"/>'
        yield f'<text x="{at:g}" y="{bottom + 16}" text-anchor="middle">{top * share:.4g}</text>'
    middle = _LEFT + _WIDTH / 2
    yield f'<text x="{middle:g}" y="{bottom + 32}" text-anchor="middle">{escape(axis)}</text>'


def _line(line: Line, y: float, top: float, num_series: int) -> Iterator[str]:
    yield f'<text x="{_LEFT - 10}" y="{y + 4:g}" text-anchor="end">{escape(line.label)}</text>'
    for mark in line.marks:
        # Marks with the same value stay apart.
        at = y + 3.0 * (mark.series - (num_series - 1) / 2)
        x = _place(mark.value, top)
        if mark.low is not None and mark.high is not None:
            yield (
                f'<path d="M{_place(mark.low, top):.1f} {at:g}H{_place(mark.high, top):.1f}" '
                f'stroke="{_COLOURS[mark.series % len(_COLOURS)]}" fill="none"/>'
            )
        yield _shape(mark.series, x, at)


def _shape(series: int, x: float, y: float) -> str:
    """Circles and squares in turn, filled and hollow."""
    colour = _COLOURS[series % len(_COLOURS)]
    paint = f'fill="{colour}"' if series % 2 == 0 else f'fill="none" stroke="{colour}"'
    if series % 4 < 2:
        return f'<circle cx="{x:.1f}" cy="{y:g}" r="4" {paint}/>'
    return f'<rect x="{x - 4:.1f}" y="{y - 4:g}" width="8" height="8" {paint}/>'


def _rounded_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8 and 10 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10, 20) if step * power >= value * 0.9999)
