"""The seam to the decision log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.audit.erasure import Erased, Wanted
from gateway.audit.record import (
    Addendum,
    DecisionRecord,
    EvidenceEvent,
    Feedback,
    OutcomeRecord,
    PolicyChange,
)
from gateway.audit.texts import Captured


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


class ChangeLog(Protocol):
    """The part of the log that says which policy came into force when, and who brought it."""

    async def append_change(self, record: PolicyChange) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        ...


class FeedbackLog(Protocol):
    """The part of the log that says what requests were about, as people found."""

    async def append_feedback(self, record: Feedback) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        ...


class TextLog(Protocol):
    """The part of the log that holds captured texts."""

    async def append_text(self, captured: Captured) -> None:
        """Return once the text is durable. Raises AuditUnavailable when it cannot be made so."""
        ...

    async def erase(self, wanted: Wanted) -> Erased:
        """Take texts out and say so in the chain. Raises AuditUnavailable."""
        ...


class AddendumLog(Protocol):
    """The part of the log that says what happened to a request after its end."""

    async def append_addendum(self, record: Addendum) -> None:
        """Return once the record is durable. Raises AuditUnavailable when it cannot be made so."""
        ...


class EvidenceLog(Protocol):
    """The part of the log that says when evidence spoke against traffic, and when that was settled."""

    async def append_event(self, record: EvidenceEvent) -> bool:
        """Return once the record is durable; False where it would say nothing new of the cell.

        Raises AuditUnavailable when it cannot be made so.
        """
        ...


class Versions(Protocol):
    """The policies that were in force."""

    async def changes(self, *, limit: int = 100) -> Sequence[PolicyChange]:
        """The last changes, newest first."""
        ...

    async def version(self, policy_hash: str) -> PolicyChange | None:
        """The last change that brought the policy with this hash into force."""
        ...
