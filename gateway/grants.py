"""What a caller may do: the scopes, models and quotas of a key or token. Knows nothing of either."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from gateway.errors import PermissionDenied, cut
from gateway.types import Caller

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]


class Scope(StrEnum):
    """One thing that a key may be for."""

    INFERENCE = "inference"
    DECISIONS_READ = "decisions:read"
    DECISIONS_DETAIL = "decisions:detail"
    POLICY_WRITE = "policy:write"
    EVIDENCE_WRITE = "evidence:write"
    METRICS = "metrics"


ALL_SCOPES = frozenset(Scope)
DEFAULT_SCOPES = frozenset({Scope.INFERENCE, Scope.DECISIONS_READ, Scope.EVIDENCE_WRITE})
"""To ask, to read one's own decisions, and to say what they were about."""


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much one caller may have, over all of its keys; None: no limit."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Of prompt and answer; counted when a request ends, and checked when one begins."""
    concurrent: Count | None = None
    """Requests in progress at a time."""

    def over(self, default: Quota) -> Quota:
        """This one, with what it leaves open from ``default``."""
        own = {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}
        return msgspec.structs.replace(default, **own)


class Grant(msgspec.Struct, frozen=True):
    """Who asks, and what that one may do."""

    caller: Caller = Caller()
    scopes: frozenset[Scope] = DEFAULT_SCOPES
    models: tuple[str, ...] | None = None
    """The models that may be asked for; None: all."""
    quota: Quota = Quota()

    def require(self, scope: Scope) -> None:
        """Raise PermissionDenied without this scope."""
        if scope not in self.scopes:
            raise PermissionDenied(
                f"This needs an API key with the scope {scope.value!r}, such as an administrator's: "
                "`draftgate keys create --scope`, or `admin: true` under auth.keys."
            )

    def may_use(self, model: str) -> bool:
        """Whether the model may be asked for."""
        return self.models is None or model in self.models

    def require_model(self, model: str) -> None:
        """Raise PermissionDenied for a model that may not be asked for."""
        if not self.may_use(model):
            raise PermissionDenied(
                f"This API key may not use the model {cut(model)!r}; GET /v1/models lists those "
                "that it may.",
                param="model",
                code="model_not_allowed",
            )


ANONYMOUS = Grant(scopes=DEFAULT_SCOPES | {Scope.METRICS})
"""Everybody, where no keys are asked for."""


def grant(
    caller_id: str,
    *,
    team: str | None = None,
    scopes: frozenset[Scope] = DEFAULT_SCOPES,
    models: tuple[str, ...] | None = None,
    quota: Quota = Quota(),  # noqa: B008 - immutable
) -> Grant:
    """A grant; whoever has all scopes is an administrator in policies and records."""
    admin = scopes >= ALL_SCOPES
    return Grant(Caller(caller_id, team, admin), scopes, models, quota)
