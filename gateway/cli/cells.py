"""How a terminal shows the cells of evidence. Knows nothing of where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from gateway.audit.record import EvidenceEvent
from gateway.cli.entries import plain
from gateway.evidence.alarm import words
from gateway.evidence.reading import Difference, Reading

_STYLES = {"ok": "", "alarm": "bold yellow", "demoted": "bold red"}


def table(readings: Sequence[Reading]) -> Table:
    """One row a cell."""
    rows = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("id", "state", "domain", "mode", "verifier", "model", "draft"):
        rows.add_column(heading, no_wrap=True)
    for heading in ("requests", "tokens", "log10 e", "surprisal", "tail", "draft-blind"):
        rows.add_column(heading, justify="right", no_wrap=True)
    for reading in readings:
        cell = reading.cell
        rows.add_row(
            reading.id,
            Text(reading.state, style=_STYLES[reading.state]),
            *(Text(plain(part)) for part in (cell.domain, cell.mode, cell.verifier, cell.model)),
            Text(plain(cell.draft) or "-"),
            f"{reading.requests:,}",
            f"{reading.tokens:,}",
            _exponent(reading),
            _number(reading.surprisal.mean, "+.4f"),
            _number(reading.tail.ratio, ".3f"),
            _number(reading.draft_blind.ratio, ".3f"),
        )
    return rows


def parts(reading: Reading) -> Iterator[Table]:
    """All of one cell, to be printed one below the other."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for name, text in _facts(reading).items():
        facts.add_row(name, Text(plain(text), style=_STYLES.get(text, "")))
    yield facts
    figures = Table(box=None, header_style="bold", pad_edge=False)
    figures.add_column("per token")
    for heading in ("observed", "expected", "difference", "95 % at all times", "ratio", "95 %"):
        figures.add_column(heading, justify="right", no_wrap=True)
    for name, found in (
        ("accepted drafts", reading.acceptance),
        ("surprisal (nats)", reading.surprisal),
        ("tail tokens", reading.tail),
        ("draft-blind tokens", reading.draft_blind),
        ("hedging", reading.hedging),
    ):
        figures.add_row(name, *_figures(found))
    yield figures


def events(found: Sequence[EvidenceEvent]) -> Table:
    """One row an alarm or clearing."""
    rows = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("time", "id", "cell", "event", "why", "by"):
        rows.add_column(heading, no_wrap=heading in ("time", "id"))
    for event in found:
        is_alarm = event.kind == "alarm"
        rows.add_row(
            _time(event.happened_at),
            event.cell.id,
            Text(plain(event.cell.text)),
            Text("demoted" if event.demotes else event.kind, style="bold red" if is_alarm else ""),
            Text(plain(words(event) if is_alarm else event.reason)),
            Text(plain(event.by) or "-"),
        )
    return rows


def _facts(reading: Reading) -> dict[str, str]:
    shadow = reading.shadow
    facts = {
        "id": reading.id,
        "cell": reading.cell.text,
        "state": reading.state,
        **_last(reading.last_event),
        "requests": f"{reading.requests:,}",
        "tokens": f"{reading.tokens:,}, {reading.measured_tokens:,} of them measured",
        "impossible": f"{reading.impossible_tokens:,} tokens",
        "log10 e-value": f"{_number(reading.log10_e, '.2f')}; "
        f"of a change: {_number(reading.log10_change, '.2f')}",
        "attestation": f"{reading.attestation_failures:,} failures",
        "shadow runs": f"{shadow.equal:,} of {shadow.runs:,} equal "
        f"({shadow.low:.3f} to {shadow.high:.3f})",
    }
    if reading.lossy_requests:
        facts["distortion"] = (
            f"{reading.distortion:.4f} of {reading.budget:.4f} allowed, "
            f"over {reading.lossy_requests:,} requests"
        )
    return facts


def _last(event: EvidenceEvent | None) -> dict[str, str]:
    if event is None:
        return {}
    if event.kind == "alarm":
        return {"since": f"{_time(event.happened_at)}: {words(event)}"}
    return {"cleared": f"{_time(event.happened_at)} by {event.by}: {event.reason}"}


def _figures(found: Difference) -> tuple[str, ...]:
    return (
        f"{found.observed:,.1f}",
        f"{found.expected:,.1f}",
        _number(found.mean, "+.5f"),
        _range(found.low, found.high, "+.5f"),
        _number(found.ratio, ".3f"),
        _range(found.ratio_low, found.ratio_high, ".3f"),
    )


def _exponent(reading: Reading) -> str:
    known = [value for value in (reading.log10_e, reading.log10_change) if value is not None]
    return _number(max(known, default=None), ".2f")


def _range(low: float | None, high: float | None, form: str) -> str:
    return "-" if low is None or high is None else f"{low:{form}} to {high:{form}}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
