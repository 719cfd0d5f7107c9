"""A policy file as people write it: a struct per YAML mapping, each refusing what it alone sees.

Knows nothing of requests, nor of the rest of the file; `checks` looks at rules side by side.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from gateway.documents import Check
from gateway.routing.when import Count, Text, When, exactly_one
from gateway.types import EXACT_VERIFIERS, LOSSY_VERIFIERS, Mode

RESERVED_IDS = ("default", "on_classifier_error", "on_truncated_input")


def _not_banning_standard(modes: tuple[Mode, ...]) -> None:
    if Mode.STANDARD in modes:
        raise ValueError("standard cannot be banned", "it is the mode that is always safe")
    if len(set(modes)) < len(modes):
        raise ValueError("a mode is listed twice", "list each once")


def _no_shadow(rate: float) -> None:
    if rate > 0:
        raise ValueError("shadow runs are not available in this version", "remove the key")


def _good_id(rule: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", rule):
        hint = "use at most 64 of a-z, 0-9, - and _, such as sourced-qa"
        raise ValueError(f"{rule[:80]!r} cannot be a rule id", hint)
    if rule in RESERVED_IDS:
        raise ValueError(f"{rule!r} is reserved", "choose another id")


def _only_version_1(version: int) -> None:
    if version != 1:
        raise ValueError(f"version {version} is not known", "write version: 1")


RuleId = Annotated[str, Check(_good_id)]


class DraftChoice(msgspec.Struct, frozen=True):
    """Which draft source proposes, and how many tokens a step at most."""

    source: str = "suffix"
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8


class Decide(msgspec.Struct, frozen=True, kw_only=True):
    """How to decode: a mode and its parameters."""

    mode: Mode
    draft: DraftChoice | None = None
    verifier: str = "coupled"
    allow_lossy: bool = False
    max_distortion: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    standard_first: Count | None = None
    content_tokens: Literal["standard", "speculative"] | None = None
    max_entropy: Annotated[float, msgspec.Meta(gt=0, le=20)] | None = None
    max_temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    backend: Text | None = None
    shadow_rate: Annotated[float, msgspec.Meta(ge=0, le=1), Check(_no_shadow)] = 0.0

    def __post_init__(self) -> None:
        if self.mode is Mode.STANDARD and self.draft is not None:
            raise ValueError("standard mode takes no draft", "remove `draft` or change the mode")
        hybrid_only = (self.standard_first, self.content_tokens, self.max_entropy)
        if self.mode is not Mode.HYBRID and hybrid_only != (None, None, None):
            raise ValueError(
                "`standard_first`, `content_tokens` and `max_entropy` do nothing in "
                f"{self.mode.value} mode",
                "they belong to hybrid",
            )
        if (
            self.mode is Mode.HYBRID
            and not self.standard_first
            and self.content_tokens != "standard"
            and self.max_entropy is None
        ):
            raise ValueError(
                "this hybrid is plain speculative",
                "give `standard_first` above 0, `content_tokens: standard` or `max_entropy`",
            )
        self._check_lossy()

    def _check_lossy(self) -> None:
        lossy = self.allow_lossy or self.max_distortion is not None
        if self.verifier in LOSSY_VERIFIERS and not lossy:
            raise ValueError(
                f"the verifier {self.verifier!r} can change what answers say",
                "give `allow_lossy: true` and `max_distortion`, or use coupled",
            )
        if lossy and not (self.allow_lossy and self.max_distortion is not None):
            raise ValueError(
                "`allow_lossy: true` and `max_distortion` go together",
                "give both, with max_distortion above 0 and at most 1, or neither",
            )
        if lossy and (self.verifier in EXACT_VERIFIERS or self.mode is Mode.STANDARD):
            what = "standard mode" if self.mode is Mode.STANDARD else f"{self.verifier!r}"
            raise ValueError(f"{what} is exact", "remove `allow_lossy` and `max_distortion`")


class RuleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``rules``: it bans modes, decides, or denies."""

    id: RuleId
    when: When | None = None
    ban: (
        Annotated[tuple[Mode, ...], msgspec.Meta(min_length=1), Check(_not_banning_standard)] | None
    ) = None
    decide: Decide | None = None
    deny: Text | None = None
    reason: str = ""
    owner: str | None = None
    caller_may_choose: bool = False

    def __post_init__(self) -> None:
        exactly_one(ban=self.ban, decide=self.decide, deny=self.deny)
        if self.caller_may_choose and self.decide is None:
            raise ValueError("`caller_may_choose` needs `decide`", "remove it")

    @property
    def kind(self) -> str:
        """``ban``, ``decide`` or ``deny``."""
        return "ban" if self.ban else "decide" if self.decide else "deny"


class PolicyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A whole policy file."""

    version: Annotated[int, Check(_only_version_1)]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    default: Decide = Decide(mode=Mode.STANDARD)
    on_classifier_error: Decide = Decide(mode=Mode.STANDARD)
    on_truncated_input: Decide = Decide(mode=Mode.STANDARD)
    rules: tuple[RuleEntry, ...] = ()
