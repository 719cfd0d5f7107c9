"""`Board`: the states of all cells, and how far in each chain of the log they have come.

A fold over outcome records and nothing else: whoever folds the same log has the same board, but for
the order of what several gateways wrote at once. Knows nothing of databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from gateway.audit.record import DecisionRecord, EvidenceEvent, OutcomeRecord, Shadow
from gateway.cell import OTHER, Cell, decided_cell
from gateway.evidence.state import CellState, executed_cell


class Settled(NamedTuple):
    """A request that is over, or its shadow run, and its place in the log."""

    writer: str
    position: int
    """In the writer's chain, of the outcome or of the shadow run."""
    records: tuple[DecisionRecord, OutcomeRecord] | None
    """None where they cannot be read, or bear no witness."""
    shadow: Shadow | None = None
    """Where it is the shadow run that is told of."""


class Snapshot(msgspec.Struct, frozen=True):
    """A board as it is stored."""

    positions: Mapping[str, int]
    cells: tuple[CellState, ...]


class Board:
    """Belongs to one thread at a time."""

    def __init__(self, limit: int, snapshot: Snapshot | None = None) -> None:
        """Beyond ``limit`` cells, new ones are counted together as `OTHER`."""
        self._limit = limit
        self.positions: dict[str, int] = dict(snapshot.positions) if snapshot else {}
        """The last outcome that was folded in, by writer."""
        self._states = {state.cell: state for state in snapshot.cells} if snapshot else {}

    @property
    def states(self) -> tuple[CellState, ...]:
        """All cells, the busiest first."""
        found = self._states.values()
        return tuple(sorted(found, key=lambda state: (-state.requests, state.cell)))

    @property
    def snapshot(self) -> Snapshot:
        """What `__init__` takes back."""
        return Snapshot(dict(self.positions), tuple(self._states.values()))

    @property
    def known(self) -> frozenset[str]:
        """The ids of the cells that have a place of their own."""
        return frozenset(cell.id for cell in self._states if cell != OTHER)

    def fold(self, settled: Settled) -> CellState | None:
        """Count a request once, however often it comes; None where nothing ran or it had come.

        The requests of one writer must come in the order of their positions.
        """
        if settled.position <= self.positions.get(settled.writer, 0):
            return None
        self.positions[settled.writer] = settled.position
        if settled.records is None:
            return None
        decision, outcome = settled.records
        cell = executed_cell(decision, outcome.execution)
        if cell is not None and outcome.attestation == "attestation_failed":
            # Another may have run than was decided; only what is decided can be decided otherwise.
            cell = decided_cell(decision.signals, decision.request.model, decision.decision)
        if cell is None:
            return None
        shadow, state = settled.shadow, self._state(cell)
        if shadow is None:
            state = state.add(decision, outcome)
        elif shadow.result != "dropped":
            state = state.observe_shadow(shadow.result == "equal")
        self._states[state.cell] = state
        return state

    def clear(self, events: Iterable[EvidenceEvent]) -> None:
        """Begin anew the bets of the cells that these events clear, unless that was done."""
        for event in events:
            state = self._states.get(event.cell)
            if event.kind != "clearing" or (state and state.cleared_at >= event.happened_at):
                continue
            # Also where nothing has come yet: what does may be of before the clearing.
            state = state or CellState(cell=event.cell)
            self._states[event.cell] = state.cleared(event.happened_at)

    def forget(self, writers: Iterable[str]) -> None:
        """Drop the positions in chains that are gone from the log."""
        for writer in writers:
            self.positions.pop(writer, None)

    def _state(self, cell: Cell) -> CellState:
        if cell not in self._states and len(self._states.keys() - {OTHER}) >= self._limit:
            cell = OTHER
        return self._states.get(cell) or CellState(cell=cell)
