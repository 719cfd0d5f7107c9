"""What helps an administrator to write a policy: its schema, and what a candidate would change."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency

from gateway.api.auth import needs
from gateway.api.identified import identified
from gateway.api.openapi import described
from gateway.api.policy import fit, read_as
from gateway.grants import Scope
from gateway.keeper import PolicyKeeper
from gateway.routing.comparison import Change, compare
from gateway.routing.reference import json_schema

_ADMIN = needs(Scope.POLICY_WRITE)


class CompareBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two policies; neither need have its tests."""

    policy: str
    old: str | None = None
    """None: the policy in force."""


class ChangeObject(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that the new policy decides otherwise, all in the same way."""

    effects: list[str]
    looser: bool
    old_rules: tuple[str, ...]
    new_rules: tuple[str, ...]
    where: tuple[str, ...]
    """What all these requests have in common; empty: every request."""
    requested_modes: tuple[str, ...]
    """What their callers ask for; ``none`` among them: the change needs no wish."""
    example: dict[str, Any]
    """One of them, as a case of a test file."""

    @classmethod
    def of(cls, change: Change) -> ChangeObject:
        """The change as people read it."""
        return cls(
            effects=[str(effect) for effect in change.effects],
            looser=change.looser,
            old_rules=change.old_rules,
            new_rules=change.new_rules,
            where=change.where,
            requested_modes=change.requested_modes,
            example=change.example,
        )


class ComparisonObject(msgspec.Struct, frozen=True, kw_only=True):
    """All differences over every request there can be; none: both decide all of them alike."""

    object: str = "policy.comparison"
    looser: bool
    changes: list[ChangeObject]


@get("/policy/schema", opt=_ADMIN, operation_class=described())
async def get_schema(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
    """The JSON Schema of a policy file, for editors."""
    return identified(request, json_schema("policy"))


@post(
    "/policy/compare",
    opt=_ADMIN,
    status_code=200,
    operation_class=described(CompareBody),
)
async def compare_policies(
    request: Request[Any, Any, Any], keeper: NamedDependency[PolicyKeeper]
) -> Response[ComparisonObject]:
    """Say which requests one policy decides otherwise than another."""
    body = await read_as(request, CompareBody)
    new = await fit(lambda: keeper.read(body.policy))
    text = body.old
    old = keeper.active.current if text is None else await fit(lambda: keeper.read(text))
    # There may be too many kinds of requests to look at.
    found = await fit(lambda: asyncio.to_thread(compare, old, new))
    answer = ComparisonObject(
        looser=found.looser, changes=[ChangeObject.of(change) for change in found.changes]
    )
    return identified(request, answer)


candidate_routes = (get_schema, compare_policies)
