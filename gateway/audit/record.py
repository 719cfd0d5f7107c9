"""What the log holds: of a request `DecisionRecord` and `OutcomeRecord`, perhaps `TextFacts`, later
perhaps `Feedback` and addenda (`Shadow`, `Access`); of the policy `PolicyChange`; of the evidence
`EvidenceEvent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from gateway.audit.digests import Digest
from gateway.cell import Cell
from gateway.execution import Execution
from gateway.types import Caller, ChatRequest, Decision, FinishReason, Sampling, Signals

SCHEMA_VERSION = 1
_ROUNDING = 1e-9
"""Of a sum of many small numbers."""


class RequestFacts(msgspec.Struct, frozen=True):
    """What the log keeps of a request: facts and a digest, no text."""

    endpoint: str
    """``chat.completions``, ``completions``, ``responses`` or ``messages``."""
    model: str
    stream: bool
    n: int
    prompt_tokens: int
    digest: str
    """Of the raw body, in hex: HMAC-SHA256 where ``digest_key`` names a key, else SHA-256."""
    has_tools: bool
    response_format: str
    requested_mode: str | None
    best_of: int | None = None
    """How many answers are generated, of which the ``n`` likeliest are given; None: ``n``."""
    digest_key: str = ""
    """The id of the log's key behind the digest."""

    @classmethod
    def of(cls, request: ChatRequest, prompt_tokens: int, digest: Digest) -> RequestFacts:
        """The facts of ``request``, whose body has this digest."""
        return cls(
            endpoint=request.endpoint or _endpoint(request),
            model=request.model,
            stream=request.stream,
            n=request.n,
            prompt_tokens=prompt_tokens,
            digest=digest.value,
            digest_key=digest.key_id,
            has_tools=request.has_tools,
            response_format=request.response_format,
            requested_mode=request.requested_mode and request.requested_mode.value,
            best_of=request.best_of,
        )


def _endpoint(request: ChatRequest) -> str:
    return "completions" if request.prompt is not None else "chat.completions"


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Written durably before anything is generated."""

    decision_id: str
    request_id: str
    created_at: float
    """Seconds since the epoch, UTC."""
    caller: Caller
    request: RequestFacts
    signals: Signals
    decision: Decision
    sampling: Sampling
    """As decoded: limits applied, seed set."""
    backend: str
    traceparent: str | None = None
    """The W3C trace context that the request came with."""
    schema_version: int = SCHEMA_VERSION


class Timings(msgspec.Struct, frozen=True):
    """Wall-clock durations in seconds."""

    classify: float = 0.0
    decide: float = 0.0
    record: float = 0.0
    first_token: float | None = None
    """From arrival to the first chunk with text; None when there was none."""
    total: float = 0.0


class OutcomeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Written once per decision, whether generation succeeded, failed or was cancelled."""

    decision_id: str
    finished_at: float
    finish_reasons: tuple[FinishReason, ...]
    """One a choice, in order."""
    execution: Execution
    timings: Timings
    attestation: str
    """``ok`` or ``attestation_failed``, see `attestation`; ``unknown`` when ``interrupted``."""
    error: str | None = None
    """Error code and message when it failed: the backend's own words, which no client sees."""
    interrupted: bool = False
    """True on a record that closes a request which a crash had left open."""
    schema_version: int = SCHEMA_VERSION


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody said afterwards a request was about. Later feedback supersedes earlier; both stay."""

    decision_id: str
    given_at: float
    """Seconds since the epoch, UTC."""
    by: str
    """A caller's id, or who ran the command."""
    domains: tuple[str, ...]
    """All that the request belongs to; empty: none of the ten."""
    note: str = ""
    schema_version: int = SCHEMA_VERSION


class TextFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What stays known of a captured text when the text itself is erased."""

    decision_id: str
    kind: Literal["prompt", "answer"]
    """The request's body, or the choices of its answer as a JSON array."""
    captured_at: float
    """Seconds since the epoch, UTC."""
    size: int = 0
    """Bytes of text, after masking."""
    truncated: bool = False
    masked: Mapping[str, int] = {}
    """What masks took out → how often."""
    text_dropped: str | None = None
    """Why there is no text: ``mask_failed``."""
    key_id: str = ""
    """Which key locked it."""
    digest: str = ""
    """SHA-256 of the ciphertext, in hex: with it the chain vouches for the text, and needs it not."""
    schema_version: int = SCHEMA_VERSION


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody was shown the captured text of a request. Written before it is shown."""

    decision_id: str
    added_at: float
    """Seconds since the epoch, UTC."""
    by: str
    """A caller's id, or who ran the command."""
    through: Literal["api", "command"]
    schema_version: int = SCHEMA_VERSION


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """What came of decoding a request again in standard mode, with the same seed, after its end."""

    decision_id: str
    added_at: float
    """Seconds since the epoch, UTC."""
    result: Literal["equal", "different", "dropped"]
    reason: str | None = None
    """Why it was dropped: ``evicted``, ``queue_full``, ``shutdown`` or ``failed``."""
    num_tokens: int = 0
    """Emitted tokens that were compared: those before the first difference, and that one."""
    answer: int | None = None
    """Which answer differs, by the order of seeds; None: none does."""
    position: int | None = None
    """The output position of the first token that differs."""
    margin: float | None = None
    """Nats: how far the standard run's token there was ahead of its next best, noise included; None
    where there was no other, or where nothing differs."""
    fingerprint: str = ""
    """Of the model that ran."""
    schema_version: int = SCHEMA_VERSION


Addendum = Access | Shadow


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True):
    """Written durably before another policy comes into force."""

    changed_at: float
    """Seconds since the epoch, UTC."""
    policy: str
    policy_hash: str
    previous_hash: str | None
    """None for the first policy of a log."""
    source: Literal["start", "file", "signal", "api", "rollback"]
    """What brought it: the gateway's start, an edited file, SIGHUP, or an administrator."""
    by: str = ""
    """The administrator's caller id; empty where the file changed by itself."""
    files: Mapping[str, str]
    """The texts in force, by file name: the policy, its tests and its proofs."""
    schema_version: int = SCHEMA_VERSION


class EvidenceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence spoke against a cell of traffic, or an administrator took that for settled."""

    happened_at: float
    """Seconds since the epoch, UTC."""
    kind: Literal["alarm", "clearing"]
    cell: Cell
    demotes: bool = False
    """Whether the cell is decoded in standard mode from this alarm to its clearing."""
    cause: str = ""
    """Of an alarm: ``impossible_token``, ``attestation_failed``, ``e_value`` or ``change``."""
    decision_id: str = ""
    """The request whose outcome raised the alarm."""
    log_e: float = 0.0
    """Natural logarithm of the e-value since the last clearing."""
    log_change: float = 0.0
    """The same of the form that restarts, for changes."""
    num_tokens: int = 0
    """Tokens of the cell that were measured, from its beginning."""
    by: str = ""
    """Who cleared: a caller's id, or who ran the command."""
    reason: str = ""
    """Why, in their words."""
    schema_version: int = SCHEMA_VERSION
