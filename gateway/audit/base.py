"""The seam to the decision log."""

from __future__ import annotations

from typing import Protocol

from gateway.audit.record import DecisionRecord, OutcomeRecord


class AuditLog(Protocol):
    """A durable, append-only log of decisions and their outcomes."""

    async def append_decision(self, record: DecisionRecord) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        ...

    async def append_outcome(self, record: OutcomeRecord) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        ...

    async def aclose(self) -> None:
        """Write what is pending and close."""
        ...
