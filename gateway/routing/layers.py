"""More than one policy file: a set, and policies that may only tighten what the set decides.

Structs of what people write, as in `schema`. What tightening means is `tighten`'s matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, ClassVar

import msgspec

from gateway.documents import Check
from gateway.routing.schema import (
    Ban,
    Conditions,
    Deny,
    Expires,
    Limits,
    Name,
    Owner,
    Reason,
    RuleId,
    Version,
)
from gateway.routing.when import OneOf, Several, When, described, exactly_one

SET_FILE = "set.yaml"
"""What makes a folder a set of policies."""

_LOOSENS = "a policy that tightens may only `ban`, `limit` and `deny`"


def _good_file(name: str) -> None:
    path = PurePosixPath(name)
    if not name.isprintable():
        raise ValueError(f"{name[:80]!r} is no file's name", "remove the control characters")
    if path.is_absolute() or ".." in path.parts or path.suffix not in (".yaml", ".yml"):
        raise ValueError(
            f"{name[:80]!r} is no policy file of this folder", "give its name, such as base.yaml"
        )
    if path.name == SET_FILE:
        raise ValueError("a set cannot hold a set", "list the files of that one here")


FileName = Annotated[str, Check(_good_file)]


class TighteningRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of a policy that tightens."""

    refused: ClassVar[Mapping[str, str]] = {"decide": _LOOSENS, "caller_may_choose": _LOOSENS}
    id: Annotated[RuleId, described("unique in the whole set")]
    when: Conditions = None
    ban: Ban = None
    limit: Limits = None
    deny: Deny = None
    reason: Reason = ""
    owner: Owner = None
    expires: Expires = None

    def __post_init__(self) -> None:
        exactly_one(ban=self.ban, limit=self.limit, deny=self.deny)

    @property
    def kind(self) -> str:
        """``ban``, ``limit`` or ``deny``."""
        return "ban" if self.ban else "limit" if self.limit else "deny"


class Audience(msgspec.Struct, frozen=True, kw_only=True):
    """Whose requests a policy tightens."""

    caller: Annotated[OneOf | None, described("who asks, by API key", {"is": "ann"})] = None
    team: Annotated[OneOf | None, described("their team", {"in": ["red", "blue"]})] = None

    def __post_init__(self) -> None:
        if self.caller is None and self.team is None:
            raise ValueError("nobody in it", "give `caller` or `team`")

    @property
    def when(self) -> When:
        """The same as conditions."""
        return When(caller=self.caller, team=self.team)


class TighteningEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A policy for some callers that may only make stricter what the others decide."""

    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("default", "on_classifier_error", "on_truncated_input"), _LOOSENS
    )
    version: Version
    name: Name
    for_: Annotated[Audience, described("whose requests it tightens", {"team": {"is": "red"}})] = (
        msgspec.field(name="for")
    )
    rules: Annotated[
        Annotated[tuple[TighteningRule, ...], Several], described("bans, limits and refusals")
    ]


class SetEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The index of a folder of policies."""

    version: Version
    name: Name
    policies: Annotated[
        Annotated[tuple[FileName, ...], Several],
        described(
            "policy files of this folder, in order: their rules are read as if they stood in one "
            "file",
            ["base.yaml", "code.yaml"],
        ),
    ]
    tighten: Annotated[
        tuple[FileName, ...],
        described("policy files that only tighten, each for some callers", ["red-team.yaml"]),
    ] = ()

    def __post_init__(self) -> None:
        files = tuple(map(PurePosixPath, (*self.policies, *self.tighten)))
        if twice := next((str(name) for name in files if files.count(name) > 1), None):
            raise ValueError(f"{twice!r} is listed twice", "list each file once")
