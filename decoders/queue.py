"""The requests that wait for a slot: the usual ones in order, and patient ones behind all of them.

Not safe by itself: the engine holds its lock around every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from decoders.request import QueueFull, Ticket


class Queue:
    """Both lines, each of which holds so many at most."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._usual: deque[Ticket] = deque()
        self._patient: deque[Ticket] = deque()

    def __len__(self) -> int:
        """How many usual ones wait."""
        return len(self._usual)

    def __iter__(self) -> Iterator[Ticket]:
        yield from self._usual
        yield from self._patient

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, patient ones included."""
        return not (self._usual or self._patient)

    def put(self, tickets: Sequence[Ticket], num_free: int) -> None:
        """Add all or none; ``num_free`` slots are there for usual ones. Raises QueueFull.

        Patient ones may wait only for slots that no usual one wants, so none are free for them.
        """
        patient = [ticket for ticket in tickets if ticket.request.patient]
        usual = [ticket for ticket in tickets if not ticket.request.patient]
        if len(usual) > self._max_length + num_free - len(self._usual):
            raise QueueFull(f"{len(self._usual)} requests are waiting already")
        if len(patient) > self._max_length - len(self._patient):
            raise QueueFull(f"{len(self._patient)} patient requests are waiting already")
        self._usual.extend(usual)
        self._patient.extend(patient)

    def take(self) -> Ticket | None:
        """The next in turn: a patient one only while no usual one waits."""
        line = self._usual or self._patient
        return line.popleft() if line else None

    def take_cancelled(self) -> list[Ticket]:
        """Those that nobody wants any more."""
        found = [ticket for ticket in self if ticket.cancelled]
        for ticket in found:
            (self._patient if ticket.request.patient else self._usual).remove(ticket)
        return found
