"""`Gauges`: the metrics of evidence. Knows nothing of how it is gathered."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.evidence.alarm import CAUSES
from gateway.evidence.state import CellState


class Gauges:
    """There are no more label values than there are cells, which are limited."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._alarms = Counter(
            "draftgate_evidence_alarms_total",
            "Times that evidence spoke against a cell of traffic. Alarm on any.",
            ("cause",),
            registry=registry,
        )
        self._log_e = Gauge(
            "draftgate_evidence_log_e_value",
            "Natural logarithm of a cell's e-value, the greater of its two forms.",
            ("domain", "mode", "verifier", "model", "draft"),
            registry=registry,
        )
        self._demoted = Gauge(
            "draftgate_demoted_cells",
            "Cells that are decoded in standard mode until an administrator clears them.",
            registry=registry,
        )
        for cause in CAUSES:
            # An alert on a rise needs the zero before it.
            self._alarms.labels(cause)

    def alarmed(self, cause: str) -> None:
        """Count an alarm that this gateway was the first to record."""
        self._alarms.labels(cause).inc()

    def show(self, states: Iterable[CellState], *, demoted: int) -> None:
        """Set what is now."""
        self._demoted.set(demoted)
        for state in states:
            cell, bet = state.cell, state.eprocess
            labels = (cell.domain, cell.mode, cell.verifier, cell.model, cell.draft)
            self._log_e.labels(*labels).set(max(bet.log_e, bet.log_change))
