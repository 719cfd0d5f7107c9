"""`Watch`: follows the log, raises alarms, and says which cells are demoted.

The outcome record is all that it counts. A restart goes on from a snapshot and the outcomes after it,
so that none is lost or counted twice; gateways on one log follow one another's outcomes and alarms.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from gateway.audit.base import EvidenceLog
from gateway.audit.record import EvidenceEvent
from gateway.errors import AuditUnavailable, Conflict, NotFound, cut
from gateway.evidence.alarm import Bounds, alarm, cause, words
from gateway.evidence.base import Messenger
from gateway.evidence.follower import Batch, Follower
from gateway.evidence.gauges import Gauges
from gateway.evidence.journal import Journal
from gateway.evidence.state import CellState
from gateway.log import Log
from gateway.routing.demotion import NO_DEMOTIONS, Demotions

SAVE_SECONDS = 60.0
_START_PAGES = 10
"""Of the log that a start waits for; a longer one is read while requests are answered."""
_REST_SECONDS = 0.05
"""Between two looks, however many outcomes come."""
_SHOWN = 5


class Watch:
    """Keeps the evidence of one gateway, from `start` to `aclose`."""

    def __init__(
        self,
        follower: Follower,
        journal: Journal,
        events: EvidenceLog,
        *,
        bounds: Bounds,
        gauges: Gauges,
        messenger: Messenger | None,
        poll_seconds: float,
        log: Log,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._follower = follower
        self._journal = journal
        self._events = events
        self._bounds = bounds
        self._gauges = gauges
        self._messenger = messenger
        self._poll_seconds = poll_seconds
        self._log = log
        self._clock = clock
        self._changing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._last: dict[str, EvidenceEvent] = {}
        """The last event of each cell."""
        self._unstored: dict[str, EvidenceEvent] = {}
        """Alarms that are in force, and could not be recorded yet."""
        self._demotions = NO_DEMOTIONS
        self._saved_at = clock()
        self._is_changed = False
        self._is_failing = False
        self._running: asyncio.Task[None] | None = None

    @property
    def demotions(self) -> Demotions:
        """Those in force now."""
        return self._demotions

    @property
    def states(self) -> tuple[CellState, ...]:
        """All cells, the busiest first."""
        return self._follower.board.states

    @property
    def last_events(self) -> Mapping[str, EvidenceEvent]:
        """The last alarm or clearing of each cell, by its id; an alarm here is in force."""
        return {**self._last, **self._unstored}

    @property
    def bounds(self) -> Bounds:
        """What raises an alarm here."""
        return self._bounds

    async def history(self, cell_id: str) -> tuple[CellState, tuple[EvidenceEvent, ...]]:
        """A cell, and its last events, newest first. Raises NotFound, AuditUnavailable."""
        events = await asyncio.to_thread(self._journal.history, cell_id)
        if pending := self._unstored.get(cell_id):
            events = (pending, *events)
        state = next((state for state in self.states if state.cell.id == cell_id), None)
        if state is None and not events:
            raise _unknown(cell_id)
        return state or CellState(cell=events[0].cell), events

    def notice(self) -> None:
        """An outcome was stored. Returns at once."""
        self._wake.set()

    def warnings(self) -> tuple[str, ...]:
        """The alarms in force, the first few of them."""
        alarms = self._alarms
        shown = [_warning(event) for event in alarms[:_SHOWN]]
        more = len(alarms) - len(shown)
        return (*shown, f"and {more} more cells are in alarm") if more else tuple(shown)

    async def start(self) -> None:
        """Bring the demotions into force, read what the log has said, and go on reading it.

        Raises AuditUnavailable.
        """
        for _ in range(_START_PAGES):
            await self.step()
            if not self._follower.is_behind:
                break
        self._running = asyncio.create_task(self._run())

    async def step(self) -> None:
        """Look at the log once. Raises AuditUnavailable where it cannot be read."""
        async with self._changing:
            batch = await asyncio.to_thread(self._follower.read)
            raised = self._fold(batch)
            self._unstored.update({event.cell.id: event for event in raised})
            # In force before it is durable: a log that is away must not keep a fault running.
            self._publish()
            for event in tuple(self._unstored.values()):
                await self._store(event, is_new=event in raised)
            if self._is_changed and self._clock() - self._saved_at >= SAVE_SECONDS:
                await self._save()

    async def clear(self, cell_id: str, *, by: str, reason: str) -> EvidenceEvent:
        """Take an alarm for settled: the cell is decoded as decided again, and its bet begins anew.

        Raises NotFound for a cell that is not known, Conflict for one that is not in alarm, and
        AuditUnavailable.
        """
        async with self._changing:
            if cell_id in self._unstored:
                await self._events.append_event(self._unstored[cell_id])
            event = self.last_events.get(cell_id)
            if event is None and all(state.cell.id != cell_id for state in self.states):
                raise _unknown(cell_id)
            if event is None or event.kind != "alarm":
                raise Conflict("This cell is not in alarm: there is nothing to clear.")
            settled = clearing(event, by=by, reason=reason, at=self._clock())
            if not await self._events.append_event(settled):
                raise Conflict("Somebody else has just cleared this cell.")
            self._unstored.pop(cell_id, None)
            self._last[cell_id] = settled
            self._follower.board.clear([settled])
            self._is_changed = True
            self._publish()
            self._log.info("evidence_cleared", cell=event.cell.text, by=by, reason=reason)
            return settled

    async def aclose(self) -> None:
        """Stop, and keep a snapshot, so that the next start has little to read."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        with contextlib.suppress(AuditUnavailable):
            await self.step()
        if self._messenger is not None:
            await self._messenger.aclose()
        if self._is_changed:
            await self._save()
        await asyncio.to_thread(self._journal.close)

    @property
    def _alarms(self) -> Sequence[EvidenceEvent]:
        return [event for event in self.last_events.values() if event.kind == "alarm"]

    async def _run(self) -> None:
        while True:
            if not self._follower.is_behind:
                # Not `wait_for`: it may lose the cancellation that comes with an outcome.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_seconds):
                        await self._wake.wait()
            self._wake.clear()
            try:
                await self.step()
                self._is_failing = False
            except AuditUnavailable as error:
                if not self._is_failing:
                    self._log.error("evidence_not_read", error=error.message)
                self._is_failing = True
                await asyncio.sleep(self._poll_seconds)
            except Exception:  # noqa: BLE001 - said, and the watching goes on
                self._log.exception("evidence_not_followed")
                await asyncio.sleep(self._poll_seconds)
            await asyncio.sleep(_REST_SECONDS)

    def _fold(self, batch: Batch) -> list[EvidenceEvent]:
        """Count what is new; returns the alarms that it raises, one a cell at most."""
        self._last = {event.cell.id: event for event in batch.events}
        for cell_id, event in self._last.items():
            pending = self._unstored.get(cell_id)
            if pending is not None and event.happened_at >= pending.happened_at:
                del self._unstored[cell_id]
        raised: dict[str, EvidenceEvent] = {}
        in_alarm = {event.cell for event in self._alarms}
        for state, outcome in self._follower.fold(batch):
            self._is_changed = True
            why = cause(state, outcome, self._bounds)
            if why is not None and state.cell not in in_alarm:
                in_alarm.add(state.cell)
                event = alarm(state, outcome, why, self._bounds, at=self._clock())
                raised[event.cell.id] = event
        return list(raised.values())

    async def _store(self, event: EvidenceEvent, *, is_new: bool) -> None:
        cell = event.cell.text
        try:
            is_news = await self._events.append_event(event)
        except AuditUnavailable as error:
            if is_new:
                self._log.error("evidence_alarm_not_recorded", cell=cell, error=error.message)
                self._tell(event)
            return
        self._unstored.pop(event.cell.id, None)
        self._last[event.cell.id] = event
        if is_new and is_news:
            self._tell(event)

    def _tell(self, event: EvidenceEvent) -> None:
        self._log.error(
            "evidence_alarm",
            cell=event.cell.text,
            cell_id=event.cell.id,
            cause=event.cause,
            demoted=event.demotes,
            decision_id=event.decision_id,
        )
        self._gauges.alarmed(event.cause)
        if self._messenger is not None:
            self._messenger.send(event)

    def _publish(self) -> None:
        demoted = {event.cell.id: _why(event) for event in self._alarms if event.demotes}
        self._demotions = Demotions(demoted, known=self._follower.board.known)
        self._gauges.show(self.states, demoted=len(demoted))

    async def _save(self) -> None:
        snapshot = self._follower.board.snapshot
        self._saved_at = self._clock()
        try:
            await asyncio.to_thread(self._journal.save, snapshot, self._saved_at)
        except AuditUnavailable as error:
            # The log has it all: only the next start takes longer.
            self._log.warning("evidence_snapshot_not_saved", error=error.message)
            return
        self._is_changed = False


def clearing(event: EvidenceEvent, *, by: str, reason: str, at: float) -> EvidenceEvent:
    """The record that settles an alarm. Raises nothing."""
    return EvidenceEvent(
        happened_at=at,
        kind="clearing",
        cell=event.cell,
        num_tokens=event.num_tokens,
        by=by,
        reason=reason,
    )


def _unknown(cell_id: str) -> NotFound:
    return NotFound(f"There is no evidence on a cell {cut(cell_id)!r}.", param="cell")


def _why(event: EvidenceEvent) -> str:
    at = datetime.fromtimestamp(event.happened_at, UTC).isoformat(timespec="seconds")
    return f"since {at}, {words(event)}"


def _warning(event: EvidenceEvent) -> str:
    state = "is demoted to standard" if event.demotes else "is in alarm"
    return (
        f"evidence: {event.cell.text} {state} {_why(event)}; look at it with `draftgate evidence "
        f"show {event.cell.id}`, clear it with `draftgate evidence clear {event.cell.id}`"
    )
