"""A policy file as people write it: a struct per YAML mapping, each refusing what it alone sees.

The order of the fields is the order in which `layout` writes them, and their descriptions are what
the reference and the JSON Schema say. Knows nothing of requests, nor of the rest of the file;
`checks` looks at rules side by side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, ClassVar, Literal

import msgspec

from gateway.documents import Check, suggestion
from gateway.routing.when import Count, Several, Text, When, described, exactly_one
from gateway.types import EXACT_VERIFIERS, LOSSY_VERIFIERS, Mode

RESERVED_IDS = ("default", "on_classifier_error", "on_truncated_input")


def _known_mode(mode: str) -> None:
    if mode not in tuple(Mode):
        bannable = (each.value for each in Mode if each is not Mode.STANDARD)
        raise ValueError(f"unknown value {mode!r}", suggestion(mode, bannable))


def _not_banning_standard(modes: tuple[str, ...]) -> None:
    if Mode.STANDARD in modes:
        raise ValueError("standard cannot be banned", "it is the mode that is always safe")
    if len(set(modes)) < len(modes):
        raise ValueError("a mode is listed twice", "list each once")


def _good_id(rule: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", rule):
        hint = "use at most 64 of a-z, 0-9, - and _, such as sourced-qa"
        raise ValueError(f"{rule[:80]!r} cannot be a rule id", hint)
    if rule in RESERVED_IDS:
        raise ValueError(f"{rule!r} is reserved", "choose another id")


def _only_version_1(version: int) -> None:
    if version != 1:
        raise ValueError(f"version {version} is not known", "write version: 1")


RuleId = Annotated[
    str,
    Check(_good_id),
    msgspec.Meta(extra_json_schema={"pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"}),
]
Version = Annotated[
    Annotated[int, Check(_only_version_1), msgspec.Meta(extra_json_schema={"const": 1})],
    described("of the language: 1"),
]
Name = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=64)],
    described("appears in every decision"),
]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Tokens = Annotated[int, msgspec.Meta(ge=1)]
Reason = Annotated[str, described("for people; kept with every decision of the rule")]
Owner = Annotated[str | None, described("for people: who answers for the rule")]
Expires = Annotated[
    date | None,
    described(
        "the rule's last day, in UTC. After it, `decide` decides standard mode; `ban`, `deny` and "
        "`limit` hold on, and `validate` warns",
        date(2026, 12, 31),
    ),
]


class DraftChoice(msgspec.Struct, frozen=True):
    """Which draft source proposes, and how many tokens a step at most."""

    source: Annotated[str, described("a registered draft source")] = "suffix"
    num_speculative_tokens: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=64)], described("the most draft tokens in one step")
    ] = 8


class Decide(msgspec.Struct, frozen=True, kw_only=True):
    """How to decode: a mode and its parameters."""

    mode: Annotated[Mode, described("how to decode")]
    draft: Annotated[
        DraftChoice | None, described("what drafts come from, in every mode but standard")
    ] = None
    verifier: Annotated[
        str,
        described("a registered verifier; `rejection` is exact too, the others are lossy"),
    ] = "coupled"
    allow_lossy: Annotated[
        bool, described("needed, with `max_distortion`, by a lossy verifier and by no other")
    ] = False
    max_distortion: Annotated[
        Probability | None,
        described(
            "with `allow_lossy`: how far the law of an answer may be from the target's, in total "
            "variation"
        ),
    ] = None
    standard_first: Annotated[
        Count | None,
        described("hybrid only: this many tokens are decoded before the first draft"),
    ] = None
    content_tokens: Annotated[
        Literal["standard", "speculative"] | None,
        described(
            "hybrid only: `standard` proposes no draft where a content word would start or go on"
        ),
    ] = None
    max_entropy: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=20)] | None,
        described(
            "hybrid only: no draft where the target was less sure than this of the token before; "
            "nats"
        ),
    ] = None
    hybrid_fallback: Annotated[
        Literal["standard", "speculative"] | None,
        described(
            "hybrid only: the mode on a backend that cannot change its mode within an answer; "
            "standard where speculative is banned"
        ),
    ] = None
    temperature: Annotated[Temperature | None, described("used whatever the request asks for")] = (
        None
    )
    max_temperature: Annotated[
        Temperature | None, described("a cap on what the request asks for")
    ] = None
    max_tokens: Annotated[Tokens | None, described("a cap on the length of the answer")] = None
    backend: Annotated[
        Text | None,
        described(
            "a configured backend; the request is decided afresh with the prompt tokens that it "
            "counts"
        ),
    ] = None
    shadow_rate: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=1)],
        described(
            "the share of requests that are decoded again in standard mode with the same seed, after "
            "the answer and where nothing else waits; the log says whether the tokens are equal",
            0.05,
        ),
    ] = 0.0
    capture: Annotated[
        Literal["none", "text"] | None,
        described(
            "`text` keeps prompt and answer in the log, masked and encrypted; `audit.text.capture` of "
            "the configuration if left out"
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.mode is Mode.STANDARD and self.draft is not None:
            raise ValueError("standard mode takes no draft", "remove `draft` or change the mode")
        hybrid_only = (
            self.standard_first,
            self.content_tokens,
            self.max_entropy,
            self.hybrid_fallback,
        )
        if self.mode is not Mode.HYBRID and any(given is not None for given in hybrid_only):
            raise ValueError(
                "`standard_first`, `content_tokens`, `max_entropy` and `hybrid_fallback` do nothing "
                f"in {self.mode.value} mode",
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
        if self.temperature is not None and self.max_temperature is not None:
            raise ValueError("has both `temperature` and `max_temperature`", "keep one of them")
        self._check_lossy()
        self._check_shadow()

    def _check_shadow(self) -> None:
        if self.shadow_rate and self.mode is Mode.STANDARD:
            raise ValueError(
                "a shadow run decodes in standard mode, and so does this", "remove `shadow_rate`"
            )
        if self.shadow_rate and self.verifier == "rejection":
            raise ValueError(
                "`rejection` draws other tokens from the same seed, so a shadow run shows nothing",
                "use coupled, or remove `shadow_rate`",
            )

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


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Caps on every request that the rule matches, whichever rule decides."""

    max_temperature: Annotated[
        Temperature | None, described("a cap on the temperature, also on a rule's own")
    ] = None
    max_tokens: Annotated[Tokens | None, described("a cap on the length of the answer")] = None
    capture: Annotated[
        Literal["none"] | None,
        described("`none`: neither prompt nor answer is kept, whatever a rule says"),
    ] = None

    def __post_init__(self) -> None:
        if (self.max_temperature, self.max_tokens, self.capture) == (None, None, None):
            raise ValueError("no limit in it", "give `max_temperature`, `max_tokens` or `capture`")


Ban = Annotated[
    Annotated[
        tuple[Annotated[str, Check(_known_mode)], ...],
        Several,
        Check(_not_banning_standard),
    ]
    | None,
    described("modes that a matching request never gets", ["speculative", "hybrid"]),
]
Conditions = Annotated[When | None, described("all must hold; without it the rule always matches")]
Deny = Annotated[
    Text | None, described("the request is refused with 403 `policy_denied` and this text")
]
Limits = Annotated[
    Limit | None,
    described("caps on sampling; all that match count", {"max_temperature": 0.4}),
]


class RuleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``rules``: it bans modes, limits sampling, decides, or denies."""

    id: Annotated[RuleId, described("lower-case letters, digits, `-` and `_`; unique")]
    when: Conditions = None
    ban: Ban = None
    limit: Limits = None
    decide: Annotated[
        Decide | None, described("how to decode", {"mode": "hybrid", "standard_first": 10})
    ] = None
    deny: Deny = None
    caller_may_choose: Annotated[
        bool, described("with `decide`: callers may ask for another mode that is not banned")
    ] = False
    reason: Reason = ""
    owner: Owner = None
    expires: Expires = None

    def __post_init__(self) -> None:
        exactly_one(ban=self.ban, limit=self.limit, decide=self.decide, deny=self.deny)
        if self.caller_may_choose and self.decide is None:
            raise ValueError("`caller_may_choose` needs `decide`", "remove it")

    @property
    def kind(self) -> str:
        """``ban``, ``limit``, ``decide`` or ``deny``."""
        actions = ("ban", "limit", "decide", "deny")
        return next(name for name in actions if getattr(self, name) is not None)


class PolicyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A whole policy file."""

    refused: ClassVar[Mapping[str, str]] = {
        "for": "a policy that tightens is listed under `tighten` in a set.yaml, and read with it",
        "policies": "a set of policies is a file named set.yaml",
        "tighten": "a set of policies is a file named set.yaml",
    }
    version: Version
    name: Name
    default: Annotated[Decide, described("what applies when no rule decides")] = Decide(
        mode=Mode.STANDARD
    )
    on_classifier_error: Annotated[
        Decide, described("stands in for every decide rule when the signals cannot be trusted")
    ] = Decide(mode=Mode.STANDARD)
    on_truncated_input: Annotated[
        Decide, described("stands in for every decide rule when some text was not scored")
    ] = Decide(mode=Mode.STANDARD)
    rules: Annotated[tuple[RuleEntry, ...], described("bans, limits, decisions and refusals")] = ()
