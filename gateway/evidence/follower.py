"""`Follower`: a board that follows the log, whoever writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from gateway.audit.record import EvidenceEvent, OutcomeRecord
from gateway.evidence.board import Board, Settled
from gateway.evidence.journal import Journal
from gateway.evidence.state import CellState

PAGE = 500
"""Outcomes that are read at a time, of each writer."""


class Batch(NamedTuple):
    """What the log has said since the last one."""

    living: frozenset[str]
    events: tuple[EvidenceEvent, ...]
    """The last one of each cell."""
    settled: tuple[Settled, ...]


class Follower:
    """Reads in any thread, folds in the one that reads the board."""

    def __init__(self, journal: Journal, *, limit: int, page: int = PAGE) -> None:
        """Begins with the journal's snapshot; there are at most ``limit`` cells besides `OTHER`.

        Raises AuditUnavailable.
        """
        self._journal = journal
        self._page = page
        self.board = Board(limit, journal.snapshot())
        # All of them once; from then on only those that are alive can have more to say.
        self._following = journal.writers()
        self.board.forget(self.board.positions.keys() - self._following)
        self.is_behind = True
        """Whether the log had more to say than was read."""

    def read(self) -> Batch:
        """What is new, as far as it goes on a page of each writer. Raises AuditUnavailable."""
        # In this order: who is not alive any more has written all that it had to before.
        living = self._journal.living()
        events = self._journal.events()
        settled = self._journal.settled(
            self._following | living, self.board.positions, limit=self._page
        )
        return Batch(living, events, settled)

    def fold(self, batch: Batch) -> Iterator[tuple[CellState, OutcomeRecord]]:
        """Count a batch; gives each state as it is after each outcome. Must be exhausted."""
        self.board.clear(batch.events)
        read = Counter(settled.writer for settled in batch.settled)
        unfinished = frozenset(writer for writer, count in read.items() if count >= self._page)
        self._following = batch.living | unfinished
        self.is_behind = bool(unfinished)
        for settled in batch.settled:
            state = self.board.fold(settled)
            if state is not None and settled.records is not None:
                yield state, settled.records[1]

    def catch_up(self) -> tuple[EvidenceEvent, ...]:
        """Read and fold to the end of the log; returns the last event of each cell."""
        while True:
            batch = self.read()
            for _ in self.fold(batch):
                pass
            if not self.is_behind:
                return batch.events
