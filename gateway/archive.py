"""`Archive`: what one caller may see of the decision log, and what people say afterwards of its requests.

Texts are for administrators alone, and nobody sees one without a record of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from gateway.audit.base import AddendumLog, FeedbackLog, TextLog
from gateway.audit.erasure import Erased, Wanted
from gateway.audit.filters import Filters
from gateway.audit.keys import Keyring
from gateway.audit.links import RecordLink
from gateway.audit.query import DecisionReader, Entry, Page
from gateway.audit.record import Access, Feedback
from gateway.audit.statistics import Statistics
from gateway.audit.vault import Locked, Vault, purpose
from gateway.errors import InvalidRequest, NotFound, PermissionDenied, TextLocked, cut
from gateway.grants import Grant, Scope
from gateway.types import DOMAINS

MAX_NOTE_CHARACTERS = 4096


class Archive:
    """The log, read and commented on. Callers see their own requests; those with the
    scope ``decisions:detail`` see all."""

    def __init__(
        self,
        reader: DecisionReader,
        log: FeedbackLog,
        *,
        texts: TextLog,
        addenda: AddendumLog,
        vault: Vault | None = None,
        keys: Keyring | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without a ``vault`` no text can be read, but each can be erased."""
        self._reader = reader
        self._log = log
        self._texts = texts
        self._addenda = addenda
        self._vault = vault
        self._keys = keys or Keyring()
        self._clock = clock

    async def get(self, decision_id: str, grant: Grant) -> Entry:
        """The entry with this id. Raises NotFound, also for another caller's."""
        entry = await self._reader.get(decision_id)
        may_see_all = Scope.DECISIONS_DETAIL in grant.scopes
        if entry is None or not (may_see_all or entry.decision.caller.id == grant.caller.id):
            raise NotFound(f"The log has no decision {cut(decision_id)!r} of yours.", param="id")
        return entry

    async def links(self, decision_id: str, grant: Grant) -> tuple[RecordLink, ...]:
        """Where its records stand in the log's chains. Raises NotFound like `get`."""
        entry = await self.get(decision_id, grant)
        return await self._reader.links(entry.decision.decision_id, self._keys)

    async def list(
        self, filters: Filters, grant: Grant, *, limit: int, cursor: str | None = None
    ) -> Page:
        """One page of what the caller may see, newest first. Raises InvalidRequest."""
        return await self._reader.list(visible(filters, grant), limit=limit, cursor=cursor)

    async def stats(
        self, filters: Filters, grant: Grant, by: Sequence[str], *, quantiles: bool = True
    ) -> Statistics:
        """Counts of what the caller may see. Raises InvalidRequest."""
        return await self._reader.stats(visible(filters, grant), by=by, quantiles=quantiles)

    async def read(self, decision_id: str, grant: Grant) -> tuple[Entry, Mapping[str, str]]:
        """The entry, and its captured texts by kind; that they were read is on record before.

        Raises PermissionDenied for who is no administrator, NotFound, TextLocked, AuditUnavailable.
        """
        self._only_administrators(grant, "see the text of requests")
        entry = await self.get(decision_id, grant)
        return entry, await open_texts(
            self._reader,
            self._addenda,
            self._vault,
            Access(
                decision_id=entry.decision.decision_id,
                added_at=self._clock(),
                by=grant.caller.id,
                through="api",
            ),
        )

    async def erase(self, decision_id: str, grant: Grant, reason: str) -> Erased:
        """Erase the texts of one request. Raises like `read`, and InvalidRequest without a reason."""
        self._only_administrators(grant, "erase the text of requests")
        entry = await self.get(decision_id, grant)
        found = entry.decision.decision_id
        checked = erasure_reason(reason)
        return await self._texts.erase(
            Wanted(by=grant.caller.id, reason=checked, decision_id=found)
        )

    @staticmethod
    def _only_administrators(grant: Grant, what: str) -> None:
        if not grant.caller.admin:
            raise PermissionDenied(f"Only an administrator may {what}.")

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


def visible(filters: Filters, grant: Grant) -> Filters:
    """``filters`` within what the caller may see. Raises InvalidRequest for another's requests."""
    if Scope.DECISIONS_DETAIL in grant.scopes:
        return filters
    own = grant.caller.id
    if filters.caller not in (None, own):
        message = f"Only an administrator may look for others; leave it out, or give {own!r}."
        raise InvalidRequest(message, param="caller")
    return msgspec.structs.replace(filters, caller=own)


async def open_texts(
    reader: DecisionReader, addenda: AddendumLog, vault: Vault | None, access: Access
) -> Mapping[str, str]:
    """The captured texts of a request by kind, after ``access`` was recorded. Raises TextLocked."""
    captured = [one for one in await reader.captures(access.decision_id) if one.ciphertext]
    if not captured:
        return {}
    if vault is None:
        raise TextLocked("There is a text, and no key to read it: set DRAFTGATE_TEXT_KEY.")
    await addenda.append_addendum(access)
    return {
        facts.kind: vault.unlock(
            Locked(facts.key_id, ciphertext or ""), purpose(access.decision_id, facts.kind)
        ).decode("utf-8", "replace")
        for facts, ciphertext in captured
    }


def erasure_reason(reason: str) -> str:
    """Why texts are erased, as it is recorded. Raises InvalidRequest."""
    if not reason.strip() or len(reason) > MAX_NOTE_CHARACTERS:
        message = f"Say why, in {MAX_NOTE_CHARACTERS} characters at most: it is recorded."
        raise InvalidRequest(message, param="reason")
    return reason


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
