"""`Archive`: what one caller may see of the decision log, and what people say afterwards of its requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from gateway.audit.base import FeedbackLog
from gateway.audit.query import DecisionReader, Entry
from gateway.audit.record import Feedback
from gateway.errors import InvalidRequest, NotFound, cut
from gateway.types import DOMAINS, Caller

MAX_NOTE_CHARACTERS = 4096


class Archive:
    """The log, read and commented on. Callers see their own requests, administrators all."""

    def __init__(
        self, reader: DecisionReader, log: FeedbackLog, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._reader = reader
        self._log = log
        self._clock = clock

    async def get(self, decision_id: str, caller: Caller) -> Entry:
        """The entry with this id. Raises NotFound, also for another caller's."""
        entry = await self._reader.get(decision_id)
        if entry is None or not (caller.admin or entry.decision.caller.id == caller.id):
            raise NotFound(f"The log has no decision {cut(decision_id)!r} of yours.", param="id")
        return entry

    async def comment(
        self, decision_id: str, caller: Caller, domains: Iterable[str], note: str = ""
    ) -> Feedback:
        """Record that the request belongs to just these ``domains``.

        Raises NotFound like `get`, InvalidRequest for what `feedback` refuses, AuditUnavailable.
        """
        entry = await self.get(decision_id, caller)
        record = feedback(
            entry.decision.decision_id, domains, note, by=caller.id, given_at=self._clock()
        )
        await self._log.append_feedback(record)
        return record


def feedback(
    decision_id: str, domains: Iterable[str], note: str, *, by: str, given_at: float
) -> Feedback:
    """Checked feedback. Raises InvalidRequest for an unknown domain and a note that is too long."""
    wanted = tuple(dict.fromkeys(domains))
    if unknown := [domain for domain in wanted if domain not in DOMAINS]:
        message = f"Unknown domain {cut(unknown[0])!r}; known: {', '.join(DOMAINS)}."
        raise InvalidRequest(message, param="domains")
    if len(note) > MAX_NOTE_CHARACTERS:
        message = f"A note has {MAX_NOTE_CHARACTERS} characters at most, this one {len(note)}."
        raise InvalidRequest(message, param="note")
    return Feedback(decision_id=decision_id, given_at=given_at, by=by, domains=wanted, note=note)
