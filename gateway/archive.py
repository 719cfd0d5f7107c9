"""`Archive`: what one caller may see of the decision log, and what people say afterwards of its requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from gateway.audit.base import FeedbackLog
from gateway.audit.query import DecisionReader, Entry
from gateway.audit.record import Feedback
from gateway.errors import InvalidRequest, NotFound, cut
from gateway.grants import Grant, Scope
from gateway.types import DOMAINS

MAX_NOTE_CHARACTERS = 4096


class Archive:
    """The log, read and commented on. Callers see their own requests; those with the
    scope ``decisions:detail`` see all."""

    def __init__(
        self, reader: DecisionReader, log: FeedbackLog, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._reader = reader
        self._log = log
        self._clock = clock

    async def get(self, decision_id: str, grant: Grant) -> Entry:
        """The entry with this id. Raises NotFound, also for another caller's."""
        entry = await self._reader.get(decision_id)
        may_see_all = Scope.DECISIONS_DETAIL in grant.scopes
        if entry is None or not (may_see_all or entry.decision.caller.id == grant.caller.id):
            raise NotFound(f"The log has no decision {cut(decision_id)!r} of yours.", param="id")
        return entry

    async def comment(
        self, decision_id: str, grant: Grant, domains: Iterable[str], note: str = ""
    ) -> Feedback:
        """Record that the request belongs to just these ``domains``.

        Raises NotFound like `get`, InvalidRequest for what `feedback` refuses, AuditUnavailable.
        """
        entry = await self.get(decision_id, grant)
        record = feedback(
            entry.decision.decision_id, domains, note, by=grant.caller.id, given_at=self._clock()
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
