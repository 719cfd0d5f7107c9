"""``/v1/decisions/{id}``: one request's records, and what somebody says afterwards it was about."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from gateway.api.auth import needs
from gateway.api.headers import request_id
from gateway.api.policy import read_as
from gateway.archive import Archive
from gateway.audit.record import DecisionRecord, Feedback, OutcomeRecord
from gateway.grants import Grant, Scope
from gateway.types import DOMAINS


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


class FeedbackObject(msgspec.Struct, frozen=True, kw_only=True):
    """Feedback as it was recorded."""

    object: str = "decision.feedback"
    feedback: Feedback


@get("/decisions/{decision_id:str}", opt=needs(Scope.DECISIONS_READ))
async def get_decision(
    request: Request[Any, Any, Any],
    archive: NamedDependency[Archive],
    grant: NamedDependency[Grant],
    decision_id: FromPath[str],
) -> Response[DecisionObject]:
    """One decision: the caller's own, or any for a key with the scope ``decisions:detail``."""
    entry = await archive.get(decision_id, grant)
    body = DecisionObject(
        id=entry.decision.decision_id,
        decision=entry.decision,
        outcome=entry.outcome,
        feedback=entry.feedback,
    )
    return Response(body, headers={"x-request-id": request_id(request)})


@post("/decisions/{decision_id:str}/feedback", status_code=201, opt=needs(Scope.EVIDENCE_WRITE))
async def give_feedback(
    request: Request[Any, Any, Any],
    archive: NamedDependency[Archive],
    grant: NamedDependency[Grant],
    decision_id: FromPath[str],
) -> Response[FeedbackObject]:
    """Say what the request was about; durable when this returns."""
    body = await read_as(request, FeedbackBody)
    record = await archive.comment(decision_id, grant, body.domains, body.note)
    return Response(
        FeedbackObject(feedback=record),
        status_code=201,
        headers={"x-request-id": request_id(request)},
    )
