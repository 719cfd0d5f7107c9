"""``POST /v1/decisions/explain``: what would be decided for a request, with every rule's part in it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, Response, post
from litestar.di import NamedDependency

from gateway.api.bodies import converter
from gateway.api.headers import requested_mode, visible
from gateway.api.identified import identified
from gateway.api.openapi import described
from gateway.api.policy import fit, read_as
from gateway.errors import InvalidRequest
from gateway.grants import Grant, Scope
from gateway.keeper import PolicyKeeper
from gateway.service import Gateway
from gateway.types import ChatRequest, Decision, Signals


class ExplainBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request, and the policy to judge it by."""

    request: dict[str, Any]
    endpoint: Literal["chat.completions", "completions", "messages", "responses"] | None = None
    """The API that it is for; None: as its fields show, and with ``messages`` a chat completion."""
    policy: str | None = None
    """None: the one in force. Another is for administrators."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What would be decided."""

    object: str = "decision.explanation"
    decision: Decision
    signals: Signals


@post("/decisions/explain", status_code=200, operation_class=described(ExplainBody))
async def explain_decision(
    request: Request[Any, Any, Any],
    gateway: NamedDependency[Gateway],
    keeper: NamedDependency[PolicyKeeper],
    grant: NamedDependency[Grant],
) -> Response[Explanation]:
    """A dry run: nothing is generated or recorded. Headers count as they would for the request."""
    body = await read_as(request, ExplainBody)
    asked = msgspec.structs.replace(
        _request(body), requested_mode=requested_mode(request), headers=visible(request)
    )
    grant.require_model(asked.model)
    candidate = None
    if body.policy is not None:
        grant.require(Scope.POLICY_WRITE)
        text = body.policy
        # Its tests are not asked: what a draft of a policy decides is what one wants to know first.
        candidate = await fit(lambda: keeper.read(text))
    verdict = await gateway.explain(asked, grant.caller, candidate)
    return identified(
        request,
        Explanation(decision=verdict.decision, signals=verdict.signals),
    )


def _request(body: ExplainBody) -> ChatRequest:
    convert = converter(body.request, body.endpoint)
    if convert is None:
        raise InvalidRequest(
            "'request' needs one of 'messages', 'prompt' and 'input'.", param="request"
        )
    return convert(body.request).request
