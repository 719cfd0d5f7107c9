"""``/v1/policy``: what is in force, what was, and how an administrator changes it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath

from gateway.api.auth import needs
from gateway.api.body import decode, invalid
from gateway.api.identified import identified
from gateway.api.openapi import described
from gateway.assurance import Guarantee
from gateway.audit.record import PolicyChange
from gateway.errors import (
    ConfigError,
    InvalidRequest,
    PreconditionRequired,
    Problem,
    cut,
)
from gateway.grants import Scope
from gateway.keeper import PolicyKeeper
from gateway.routing.policy import Policy
from gateway.service import Gateway
from gateway.types import Caller

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

_ADMIN = needs(Scope.POLICY_WRITE)
_HASH = re.compile(r"[0-9a-f]{64}")


class RuleObject(msgspec.Struct, frozen=True):
    """One rule, for an overview."""

    id: str
    kind: str
    reason: str
    owner: str | None


class PolicyObject(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force."""

    object: str = "policy"
    name: str
    hash: str
    text: str
    rules: list[RuleObject]
    bans: tuple[Guarantee, ...]
    """What the classifier's contract says of each threshold at which a rule bans."""
    warning: str | None
    """Why what the files hold now is not, or not wholly, in force."""


class VersionObject(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a policy came into force."""

    object: str = "policy.version"
    name: str
    hash: str
    previous_hash: str | None
    changed_at: float
    source: str
    by: str
    active: bool
    files: dict[str, str] | None = None
    """The texts by file name; only where one version is asked for."""


class VersionList(msgspec.Struct, frozen=True, kw_only=True):
    """The last changes, newest first."""

    object: str = "list"
    data: list[VersionObject]


class ProblemObject(msgspec.Struct, frozen=True):
    """One thing that is wrong with a policy; line and column are 0 where there is no such place."""

    message: str
    file: str
    line: int
    column: int
    hint: str


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a policy is fit to come into force."""

    object: str = "policy.validation"
    valid: bool
    hash: str | None = None
    problems: list[ProblemObject] = []


class ChangeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate; tests and proofs that are not given stay as they are, empty ones go away."""

    policy: str
    tests: str | None = None
    proofs: str | None = None


class RollbackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which version to bring back."""

    hash: str


@get("/policy", opt=_ADMIN, operation_class=described())
async def get_policy(
    request: Request[Any, Any, Any],
    keeper: NamedDependency[PolicyKeeper],
    gateway: NamedDependency[Gateway],
) -> Response[PolicyObject]:
    """The policy in force; its ETag is what If-Match wants."""
    return _policy(request, keeper, gateway, keeper.active.current)


@get("/policy/versions", opt=_ADMIN, operation_class=described())
async def list_versions(
    request: Request[Any, Any, Any], keeper: NamedDependency[PolicyKeeper]
) -> Response[VersionList]:
    """The last hundred changes, newest first."""
    changes = await keeper.changes()
    active = keeper.active.current.hash
    return identified(request, VersionList(data=[_version(change, active) for change in changes]))


@get(
    "/policy/versions/{policy_hash:str}",
    opt=_ADMIN,
    operation_class=described(),
)
async def get_version(
    request: Request[Any, Any, Any],
    keeper: NamedDependency[PolicyKeeper],
    policy_hash: FromPath[str],
) -> Response[VersionObject]:
    """One version with its texts."""
    change = await keeper.version(_hash(policy_hash))
    found = _version(change, keeper.active.current.hash)
    return identified(request, msgspec.structs.replace(found, files=dict(change.files)))


@post(
    "/policy/validate",
    opt=_ADMIN,
    status_code=200,
    operation_class=described(ChangeBody),
)
async def validate_policy(
    request: Request[Any, Any, Any], keeper: NamedDependency[PolicyKeeper]
) -> Response[Validation]:
    """Check and test a candidate, and change nothing."""
    body = await read_as(request, ChangeBody)
    try:
        policy = await keeper.check(msgspec.structs.asdict(body))
    except ConfigError as error:
        problems = [_problem(problem) for problem in error.problems]
        return identified(request, Validation(valid=False, problems=problems))
    return identified(request, Validation(valid=True, hash=policy.hash))


@put("/policy", opt=_ADMIN, operation_class=described(ChangeBody))
async def apply_policy(
    request: Request[Any, Any, Any],
    keeper: NamedDependency[PolicyKeeper],
    gateway: NamedDependency[Gateway],
    caller: NamedDependency[Caller],
) -> Response[PolicyObject]:
    """Replace the policy that If-Match names."""
    replaces = _if_match(request)
    body = await read_as(request, ChangeBody)
    texts = msgspec.structs.asdict(body)
    policy = await fit(lambda: keeper.apply(texts, replaces=replaces, by=caller.id))
    return _policy(request, keeper, gateway, policy)


@post(
    "/policy/rollback",
    opt=_ADMIN,
    status_code=200,
    operation_class=described(RollbackBody),
)
async def rollback_policy(
    request: Request[Any, Any, Any],
    keeper: NamedDependency[PolicyKeeper],
    gateway: NamedDependency[Gateway],
    caller: NamedDependency[Caller],
) -> Response[PolicyObject]:
    """Bring an earlier version back in place of the policy that If-Match names."""
    replaces = _if_match(request)
    wanted = _hash((await read_as(request, RollbackBody)).hash)
    policy = await fit(lambda: keeper.rollback(wanted, replaces=replaces, by=caller.id))
    return _policy(request, keeper, gateway, policy)


policy_routes = (
    get_policy,
    list_versions,
    get_version,
    validate_policy,
    apply_policy,
    rollback_policy,
)


async def fit(change: Callable[[], Awaitable[T]]) -> T:
    """What ``change`` gives. Raises InvalidRequest where it raises ConfigError."""
    try:
        return await change()
    except ConfigError as error:
        raise InvalidRequest(str(error), param="policy", code="invalid_policy") from None


async def read_as(request: Request[Any, Any, Any], kind: type[S]) -> S:
    """The body as a struct. Raises InvalidRequest that names the parameter at fault."""
    fields = decode(await request.body())
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None


def _if_match(request: Request[Any, Any, Any]) -> str:
    given = request.headers.get("if-match", "").strip().removeprefix("W/").strip('"')
    if not given:
        raise PreconditionRequired(
            "Send If-Match with the hash of the policy to replace, as GET /v1/policy gives it."
        )
    return given


def _hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise InvalidRequest(f"{cut(text)!r} is no policy hash: 64 of 0-9 and a-f.", param="hash")
    return text


def _policy(
    request: Request[Any, Any, Any], keeper: PolicyKeeper, gateway: Gateway, policy: Policy
) -> Response[PolicyObject]:
    body = PolicyObject(
        name=policy.name,
        hash=policy.hash,
        text=policy.text,
        rules=[RuleObject(rule.id, rule.kind, rule.reason, rule.owner) for rule in policy.rules],
        bans=gateway.guarantees(policy),
        warning=keeper.active.warning,
    )
    return identified(request, body, etag=f'"{policy.hash}"')


def _version(change: PolicyChange, active: str) -> VersionObject:
    return VersionObject(
        name=change.policy,
        hash=change.policy_hash,
        previous_hash=change.previous_hash,
        changed_at=change.changed_at,
        source=change.source,
        by=change.by,
        active=change.policy_hash == active,
    )


def _problem(problem: Problem) -> ProblemObject:
    file = problem.path.rsplit("/", 1)[-1]
    return ProblemObject(problem.message, file, problem.line, problem.column, problem.hint)
