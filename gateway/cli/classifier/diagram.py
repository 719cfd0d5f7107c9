"""The reliability diagram as an SVG: how often a domain is right, by the probability it is given."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from gateway.classification.evaluation import DomainReport, Report

_SIDE, _MARGIN, _GAP = 160, 34, 26
# Read on white and on black alike.
_INK, _BAR, _OFF = "#7d8590", "#2f81f7", "#d98c00"


def draw(report: Report) -> str:
    """One panel for each domain that is guarded or banned. The same report gives the same text."""
    panels = [one for one in report.domains if one.banned or one.domain in report.guard.domains]
    step = _SIDE + _MARGIN + _GAP
    width, height = max(len(panels), 1) * step + _GAP, _SIDE + 2 * _MARGIN + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10" fill="{_INK}">'
    ]
    for at, one in enumerate(panels):
        lines.append(f'<g transform="translate({at * step + _MARGIN + 8},{_MARGIN})">')
        lines += _panel(one)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _panel(one: DomainReport) -> Iterator[str]:
    name = escape(one.domain.replace("_", " "))
    yield (
        f'<text x="{_SIDE / 2:g}" y="-18" text-anchor="middle" font-size="12">{name}</text>'
        f'<text x="{_SIDE / 2:g}" y="-5" text-anchor="middle">'
        f"expected calibration error {one.calibration_error:.3f}</text>"
    )
    yield f'<rect width="{_SIDE}" height="{_SIDE}" fill="none" stroke="{_INK}"/>'
    yield f'<path d="M0 {_SIDE}L{_SIDE} 0" stroke="{_INK}" stroke-dasharray="3 3"/>'
    for each in one.bins:
        if not each.rows:
            continue
        left, right = each.low * _SIDE, each.high * _SIDE
        top, wanted = (1 - each.positive) * _SIDE, (1 - each.mean_probability) * _SIDE
        yield (
            f'<rect x="{left + 1:.1f}" y="{top:.1f}" width="{right - left - 2:.1f}" '
            f'height="{_SIDE - top:.1f}" fill="{_BAR}">'
            f"<title>{each.rows} rows, mean probability {each.mean_probability:.3f}, "
            f"{each.positive:.3f} positive</title></rect>"
        )
        yield f'<path d="M{left:.1f} {wanted:.1f}H{right:.1f}" stroke="{_OFF}" stroke-width="2"/>'
    for share in (0.0, 0.5, 1.0):
        yield f'<text x="{share * _SIDE:g}" y="{_SIDE + 13}" text-anchor="middle">{share:g}</text>'
        yield f'<text x="-5" y="{(1 - share) * _SIDE + 3:g}" text-anchor="end">{share:g}</text>'
    yield f'<text x="{_SIDE / 2:g}" y="{_SIDE + 27}" text-anchor="middle">probability</text>'
