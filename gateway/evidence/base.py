"""The seams of evidence: what the gateway asks of it, and whom it tells of alarms."""

from __future__ import annotations

from typing import Protocol

from gateway.audit.record import EvidenceEvent
from gateway.routing.demotion import NO_DEMOTIONS, Demotions


class Evidence(Protocol):
    """What is known against traffic."""

    @property
    def demotions(self) -> Demotions:
        """Those in force now."""
        ...

    def notice(self) -> None:
        """An outcome was stored. Returns at once."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """What an operator should look at."""
        ...


class NoEvidence:
    """`Evidence` where none is gathered."""

    demotions = NO_DEMOTIONS

    def notice(self) -> None:
        """Nobody listens."""

    def warnings(self) -> tuple[str, ...]:
        """Nothing is known."""
        return ()


class Messenger(Protocol):
    """Carries alarms to people."""

    def send(self, event: EvidenceEvent) -> None:
        """Take the event along. Returns at once and never raises."""
        ...

    async def aclose(self) -> None:
        """Give up what is still under way."""
        ...
