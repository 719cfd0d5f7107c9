"""`Line`: the requests that wait for a slot, and whose turn it is. Called under the engine's lock.

Scopes take turns, one request each, so that who asks for much waits for itself and not others for
it. A full line makes room for a scope that has less in it than another. Patient requests stand behind
all others, whoever asks for them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

from decoders.request import QueueFull, Ticket


class Line:
    """First in, first out within a scope; scopes in turn."""

    def __init__(self, max_waiting: int, max_per_scope: int | None = None) -> None:
        """How many may wait at all, and of one scope; None: no fewer."""
        self._max_waiting = max_waiting
        self._max_per_scope = max_waiting if max_per_scope is None else max_per_scope
        self._scopes: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._patient: deque[Ticket] = deque()

    def __len__(self) -> int:
        """How many wait, without the patient ones."""
        # Of a copy: other threads read it too, to show it.
        return sum(len(tickets) for tickets in list(self._scopes.values()))

    def __iter__(self) -> Iterator[Ticket]:
        for tickets in self._scopes.values():
            yield from tickets
        yield from self._patient

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, patient ones included."""
        return not (self._scopes or self._patient)

    def add(self, tickets: Sequence[Ticket], num_free: int) -> list[Ticket]:
        """Let all of them wait, all of one scope and patience, where ``num_free`` slots are free.

        Patient ones wait only for slots that no other wants, so none are free for them. Returns those
        that have to go for it: the newest of the scopes that have most. Raises QueueFull, and then
        nothing has changed.
        """
        if not tickets:
            return []
        if tickets[0].request.patient:
            self._add_patient(tickets)
            return []
        scope = tickets[0].request.scope
        before = len(self._scopes.get(scope, ()))
        mine = before + len(tickets)
        if mine > self._max_per_scope + num_free:
            raise QueueFull(f"{before} requests of this caller are waiting already")
        leaving = self._leaving(
            scope, mine, len(self) + len(tickets) - self._max_waiting - num_free
        )
        gone = [self._scopes[name].pop() for name in leaving]
        self._scopes.setdefault(scope, deque()).extend(tickets)
        for name in leaving:
            self._forget_empty(name)
        return gone

    def take(self) -> Ticket | None:
        """Take out whose turn it is: a patient one only while no other waits; None if nobody does."""
        if not self._scopes:
            return self._patient.popleft() if self._patient else None
        scope, tickets = next(iter(self._scopes.items()))
        ticket = tickets.popleft()
        self._scopes.move_to_end(scope)
        self._forget_empty(scope)
        return ticket

    def remove(self, ticket: Ticket) -> None:
        """Take out one that waits."""
        if ticket.request.patient:
            self._patient.remove(ticket)
            return
        scope = ticket.request.scope
        self._scopes[scope].remove(ticket)
        self._forget_empty(scope)

    def clear(self) -> list[Ticket]:
        """Take out all."""
        everybody = list(self)
        self._scopes.clear()
        self._patient.clear()
        return everybody

    def _add_patient(self, tickets: Sequence[Ticket]) -> None:
        if len(tickets) > self._max_waiting - len(self._patient):
            raise QueueFull(f"{len(self._patient)} patient requests are waiting already")
        self._patient.extend(tickets)

    def _leaving(self, scope: str, mine: int, count: int) -> list[str]:
        """The scopes of which one request each has to go, so that ``count`` places are free."""
        sizes = {name: len(tickets) for name, tickets in self._scopes.items() if name != scope}
        leaving: list[str] = []
        for _ in range(count):
            most = max(sizes, key=lambda name: sizes[name], default=None)
            # Only down to what the newcomer has: two who ask for much must not take turns at it.
            if most is None or sizes[most] <= mine:
                raise QueueFull(f"{len(self)} requests are waiting already")
            sizes[most] -= 1
            leaving.append(most)
        return leaving

    def _forget_empty(self, scope: str) -> None:
        if not self._scopes.get(scope, True):
            del self._scopes[scope]
