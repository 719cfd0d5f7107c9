"""``/v1/evidence``: what the tokens of each kind of traffic say together, and how an alarm is settled."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from gateway.api.auth import needs
from gateway.api.identified import identified
from gateway.api.openapi import described
from gateway.api.policy import read_as
from gateway.audit.record import EvidenceEvent
from gateway.evidence.reading import Reading, readings
from gateway.evidence.trail import Point
from gateway.evidence.watch import Watch
from gateway.grants import Scope
from gateway.types import Caller

MAX_REASON_CHARACTERS = 4096
_ADMIN = needs(Scope.POLICY_WRITE)


class EvidenceList(msgspec.Struct, frozen=True, kw_only=True):
    """All cells, those in alarm first, then the busiest."""

    object: str = "list"
    data: tuple[Reading, ...]


class CellObject(msgspec.Struct, frozen=True, kw_only=True):
    """One cell, with what came before."""

    object: str = "evidence.cell"
    reading: Reading
    log10_alarm: float
    """The e-value's logarithm from which on there is an alarm."""
    trail: tuple[Point, ...]
    """The e-value since the last clearing."""
    events: tuple[EvidenceEvent, ...]
    """The last hundred alarms and clearings, newest first."""


class ClearBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why the cell may be decoded as decided again."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_REASON_CHARACTERS)]


class ClearingObject(msgspec.Struct, frozen=True, kw_only=True):
    """A clearing as it was recorded."""

    object: str = "evidence.clearing"
    id: str
    event: EvidenceEvent


@get("/evidence", opt=_ADMIN, operation_class=described())
async def list_evidence(
    request: Request[Any, Any, Any], watch: NamedDependency[Watch]
) -> Response[EvidenceList]:
    """All cells."""
    body = EvidenceList(data=readings(watch.states, watch.last_events))
    return identified(request, body)


@get("/evidence/{cell:str}", opt=_ADMIN, operation_class=described())
async def get_evidence(
    request: Request[Any, Any, Any], watch: NamedDependency[Watch], cell: FromPath[str]
) -> Response[CellObject]:
    """One cell: its e-value over tokens, its alarms, and who cleared them."""
    state, events = await watch.history(cell)
    body = CellObject(
        reading=Reading.of(state, events[0] if events else None),
        log10_alarm=watch.bounds.log_bound / math.log(10),
        trail=state.trail.points,
        events=events,
    )
    return identified(request, body)


@post(
    "/evidence/{cell:str}/clear",
    opt=_ADMIN,
    status_code=200,
    operation_class=described(ClearBody),
)
async def clear_evidence(
    request: Request[Any, Any, Any],
    watch: NamedDependency[Watch],
    caller: NamedDependency[Caller],
    cell: FromPath[str],
) -> Response[ClearingObject]:
    """Take the alarm of a cell for settled; durable when this returns."""
    body = await read_as(request, ClearBody)
    event = await watch.clear(cell, by=caller.id, reason=body.reason)
    return identified(
        request,
        ClearingObject(id=event.cell.id, event=event),
    )


evidence_routes = (list_evidence, get_evidence, clear_evidence)
