"""``/v1/decisions``: the records and texts of requests, and what people say afterwards they were about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from gateway.api.auth import needs
from gateway.api.identified import identified
from gateway.api.openapi import described
from gateway.api.policy import read_as
from gateway.archive import Archive
from gateway.audit.filters import parse
from gateway.audit.links import RecordLink
from gateway.audit.query import MAX_LIMIT, Entry
from gateway.audit.record import (
    Access,
    DecisionRecord,
    Feedback,
    OutcomeRecord,
    Shadow,
    TextFacts,
)
from gateway.audit.statistics import DEFAULT_BY, Group
from gateway.errors import InvalidRequest, cut
from gateway.grants import Grant, Scope
from gateway.types import DOMAINS

DEFAULT_LIMIT = 50


class FeedbackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the request was about."""

    domains: Annotated[list[str], msgspec.Meta(max_length=len(DOMAINS))]
    """All that it belongs to; empty: none of the ten."""
    note: str = ""


class DecisionObject(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the log."""

    object: str = "decision"
    id: str
    decision: DecisionRecord
    outcome: OutcomeRecord | None
    """None while the request runs."""
    feedback: tuple[Feedback, ...]
    """In the order in which it was given: the last one counts."""
    texts: tuple[TextFacts, ...]
    """What was captured, without the texts."""
    erased: bool
    """Whether a text was captured and is gone."""
    shadow: Shadow | None
    """What came of decoding it again in standard mode; None where that was not done, or not yet."""
    accesses: tuple[Access, ...]
    """Who was shown its text, before this request."""
    text: Mapping[str, str] | None = None
    """``prompt`` and ``answer`` as captured, where they were asked for and are there."""

    @classmethod
    def of(cls, entry: Entry, text: Mapping[str, str] | None = None) -> DecisionObject:
        """One entry as clients see it."""
        return cls(
            id=entry.decision.decision_id,
            decision=entry.decision,
            outcome=entry.outcome,
            feedback=entry.feedback,
            texts=entry.texts,
            erased=entry.erased,
            shadow=entry.shadow,
            accesses=entry.accesses,
            text=text,
        )


class ChainObject(msgspec.Struct, frozen=True, kw_only=True):
    """Where the records of a request stand in the log's chains."""

    object: str = "decision.chain"
    id: str
    links: tuple[RecordLink, ...]


class ErasureObject(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased."""

    object: str = "decision.erasure"
    id: str
    erased: bool
    """False: there was no text."""
    scrubbed: bool
    """False: the database's files may hold copies for as long as a reader is in the way."""


class FeedbackObject(msgspec.Struct, frozen=True, kw_only=True):
    """Feedback as it was recorded."""

    object: str = "decision.feedback"
    feedback: Feedback


class DecisionList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the log, newest first."""

    object: str = "list"
    data: tuple[DecisionObject, ...]
    has_more: bool
    next_cursor: str | None
    """What to give as ``cursor`` for the next page; None when this is the last."""


class StatisticsObject(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the log."""

    object: str = "decision.statistics"
    by: tuple[str, ...]
    groups: tuple[Group, ...]
    truncated: bool


@get(
    "/decisions",
    opt=needs(Scope.DECISIONS_READ),
    operation_class=described(),
)
async def list_decisions(
    request: Request[Any, Any, Any],
    archive: NamedDependency[Archive],
    grant: NamedDependency[Grant],
) -> Response[DecisionList]:
    """A page of the caller's own decisions, or of all for an administrator."""
    pairs = list(request.query_params.multi_items())
    filters = parse(pair for pair in pairs if pair[0] not in ("limit", "cursor"))
    limit = _limit(_once(pairs, "limit"))
    page = await archive.list(filters, grant, limit=limit, cursor=_once(pairs, "cursor"))
    body = DecisionList(
        data=tuple(DecisionObject.of(entry) for entry in page.entries),
        has_more=page.next_cursor is not None,
        next_cursor=page.next_cursor,
    )
    return identified(request, body)


@get(
    "/decisions/stats",
    opt=needs(Scope.DECISIONS_READ),
    operation_class=described(),
)
async def count_decisions(
    request: Request[Any, Any, Any],
    archive: NamedDependency[Archive],
    grant: NamedDependency[Grant],
) -> Response[StatisticsObject]:
    """Counts, tokens and durations by what decisions have in common."""
    pairs = list(request.query_params.multi_items())
    by = [name for key, value in pairs if key == "by" for name in value.split(",") if name]
    filters = parse((key, value) for key, value in pairs if key not in ("by", "quantiles"))
    quantiles = _switch("quantiles", _once(pairs, "quantiles"))
    names = by if any(key == "by" for key, _ in pairs) else DEFAULT_BY
    found = await archive.stats(filters, grant, names, quantiles=quantiles)
    body = StatisticsObject(by=found.by, groups=found.groups, truncated=found.truncated)
    return identified(request, body)


@get(
    "/decisions/{decision_id:str}",
    opt=needs(Scope.DECISIONS_READ),
    operation_class=described(),
)
async def get_decision(
    request: Request[Any, Any, Any],
    archive: NamedDependency[Archive],
    grant: NamedDependency[Grant],
    decision_id: FromPath[str],
    text: FromQuery[bool] = False,
) -> Response[DecisionObject]:
    """One decision: the caller's own, or any for a key with the scope
    ``decisions:detail``; who sees texts is recorded."""
    if text:
        body = DecisionObject.of(*await archive.read(decision_id, grant))
    else:
        body = DecisionObject.of(await archive.get(decision_id, grant))
    return identified(request, body)


@get(
    "/decisions/{decision_id:str}/chain",
    opt=needs(Scope.DECISIONS_READ),
    operation_class=described(),
)
async def get_chain(
    request: Request[Any, Any, Any],
    archive: NamedDependency[Archive],
    grant: NamedDependency[Grant],
    decision_id: FromPath[str],
) -> Response[ChainObject]:
    """Whether the records of a request are what was written, as far as their links can tell."""
    body = ChainObject(id=decision_id, links=await archive.links(decision_id, grant))
    return identified(request, body)


@delete(
    "/decisions/{decision_id:str}/text",
    status_code=200,
    opt=needs(Scope.DECISIONS_DETAIL),
    operation_class=described(),
)
async def erase_text(
    request: Request[Any, Any, Any],
    archive: NamedDependency[Archive],
    grant: NamedDependency[Grant],
    decision_id: FromPath[str],
    reason: FromQuery[str] = "",
) -> Response[ErasureObject]:
    """Erase the captured text of one request, for an administrator; recorded, with the reason."""
    erased = await archive.erase(decision_id, grant, reason)
    return identified(
        request,
        ErasureObject(id=decision_id, erased=bool(erased.requests), scrubbed=erased.is_scrubbed),
    )


@post(
    "/decisions/{decision_id:str}/feedback",
    status_code=201,
    opt=needs(Scope.EVIDENCE_WRITE),
    operation_class=described(FeedbackBody),
)
async def give_feedback(
    request: Request[Any, Any, Any],
    archive: NamedDependency[Archive],
    grant: NamedDependency[Grant],
    decision_id: FromPath[str],
) -> Response[FeedbackObject]:
    """Say what the request was about; durable when this returns."""
    body = await read_as(request, FeedbackBody)
    record = await archive.comment(decision_id, grant, body.domains, body.note)
    return identified(
        request,
        FeedbackObject(feedback=record),
        status_code=201,
    )


def _once(pairs: Sequence[tuple[str, str]], name: str) -> str | None:
    values = [value for key, value in pairs if key == name]
    if len(values) > 1:
        raise InvalidRequest(f"{name!r} is given twice; give it once.", param=name)
    return values[0] if values else None


def _switch(name: str, text: str | None) -> bool:
    if text not in (None, "true", "false"):
        raise InvalidRequest(f"{name!r} is {cut(text)!r}; it must be true or false.", param=name)
    return text != "false"


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        message = f"'limit' is {cut(text)!r}; it must be a number from 1 to {MAX_LIMIT}."
        raise InvalidRequest(message, param="limit")
    return int(text)
