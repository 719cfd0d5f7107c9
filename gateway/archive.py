"""`Archive`: what one caller may see of the decision log, and what people say afterwards of its requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gateway.audit.base import FeedbackLog
from gateway.audit.filters import Filters
from gateway.audit.query import DecisionReader, Entry, Page
from gateway.audit.record import Feedback
from gateway.audit.statistics import Statistics
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

    async def list(
        self, filters: Filters, caller: Caller, *, limit: int, cursor: str | None = None
    ) -> Page:
        """One page of what the caller may see, newest first. Raises InvalidRequest."""
        return await self._reader.list(visible(filters, caller), limit=limit, cursor=cursor)

    async def stats(self, filters: Filters, caller: Caller, by: Sequence[str]) -> Statistics:
        """Counts of what the caller may see. Raises InvalidRequest."""
        return await self._reader.stats(visible(filters, caller), by=by)

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


def visible(filters: Filters, caller: Caller) -> Filters:
    """``filters`` within what the caller may see. Raises InvalidRequest for another's requests."""
    if caller.admin:
        return filters
    if filters.caller not in (None, caller.id):
        message = f"Only an administrator may look for others; leave it out, or give {caller.id!r}."
        raise InvalidRequest(message, param="caller")
    return msgspec.structs.replace(filters, caller=caller.id)


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
