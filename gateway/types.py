"""The nouns that travel through the gateway, as frozen structs. Knows nothing of HTTP, torch or storage."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

import msgspec

from gateway.arguments import hidden_strings
from gateway.opinion import Review

SHORT_HASH_LENGTH = 12
"""Hex digits of a policy's hash where people see it; records hold all of them."""


class Mode(StrEnum):
    """How an answer is decoded."""

    STANDARD = "standard"
    SPECULATIVE = "speculative"
    HYBRID = "hybrid"


class FinishReason(StrEnum):
    """Why generation ended; ``cancelled`` and ``error`` are recorded but never sent to a client."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    ERROR = "error"


DOMAINS: tuple[str, ...] = (
    "medical",
    "legal",
    "finance",
    "code",
    "math_reasoning",
    "factual_qa",
    "structured_extraction",
    "creative_writing",
    "customer_support",
    "general_chat",
)
"""The domains a classifier gives an independent probability each."""

EXACT_VERIFIERS: tuple[str, ...] = ("coupled", "rejection")
LOSSY_VERIFIERS: tuple[str, ...] = ("typical", "conservative")
"""Of the verifiers that come with Draftgate, those that can change what an answer says; a policy has
to allow each use of one. A verifier of somebody else's says for itself which it is."""


class Caller(msgspec.Struct, frozen=True):
    """Who asks; worked out from the API key."""

    id: str = "anonymous"
    team: str | None = None
    admin: bool = False


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a function that the assistant made earlier, as the client sent it."""

    name: str = ""
    arguments: str = ""
    """JSON as text."""
    id: str = ""

    @property
    def text(self) -> str:
        """All that a model may read of it, however a chat template writes the arguments."""
        parts = (self.name, self.arguments, *hidden_strings(self.arguments), self.id)
        return "\n".join(filter(None, parts))


class Message(msgspec.Struct, frozen=True):
    """One chat turn: what may reach the model, and nothing else of what the client sent."""

    role: str
    content: str | None = None
    """As it was sent; of several parts, the texts joined by line breaks."""
    refusal: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """In a tool's message: the call that it answers."""

    @property
    def text(self) -> str:
        """All of the turn, for classifiers and policies: whatever a model may read, they read too."""
        calls = (call.text for call in self.tool_calls)
        return "\n".join(filter(None, (self.content, self.refusal, *calls, self.tool_call_id)))


class Tool(msgspec.Struct, frozen=True):
    """A function that the client offers."""

    name: str
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'
    """The JSON schema of its arguments, as text."""

    @property
    def text(self) -> str:
        """All that a model may read of it."""
        return "\n".join(filter(None, (self.name, self.description, self.parameters)))


class Grammar(msgspec.Struct, frozen=True):
    """What an answer may say: the backend allows nothing else, token by token."""

    kind: str
    """``json_object``, ``json_schema``, ``regex``, ``choice`` or ``grammar``."""
    source: str
    """The schema as JSON, the pattern, the choices as a JSON array, or EBNF."""
    param: str
    """The request's parameter that holds it, for errors."""


class Sampling(msgspec.Struct, frozen=True):
    """The request's sampling knobs, validated; ``None`` means that the request did not say."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = None
    min_tokens: int = 0
    """No token that ends the answer comes before so many."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = msgspec.field(default_factory=dict)
    logprobs: int | None = None
    """``None``: none wanted; ``k``: the chosen token's and the k most likely ones'."""


class ChatRequest(msgspec.Struct, frozen=True):
    """One request as the gateway understands it. Exactly one of ``messages`` and ``prompt`` is set."""

    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    sampling: Sampling = Sampling()
    n: int = 1
    best_of: int | None = None
    """How many answers to generate, of which the ``n`` likeliest are the choices; ``None``: ``n``."""
    echo: bool = False
    """Whether each choice begins with the prompt; with log-probabilities, with those of its tokens."""
    stream: bool = False
    has_tools: bool = False
    response_format: str = "text"
    """The kind of the grammar, or ``text``."""
    grammar: Grammar | None = None
    tools: tuple[Tool, ...] = ()
    called: tuple[str, ...] = ()
    """The tools of which the answer must call one; empty: nothing must be called."""
    may_call: bool = False
    """Whether the answer may call tools where it likes, as its model writes calls."""
    several_calls: bool = True
    """Whether it may then make more than one."""
    requested_mode: Mode | None = None
    """From the ``X-Draftgate-Mode`` header."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Lower-cased request headers, without credentials; for the policy's ``header`` condition."""
    body: bytes = b""
    """The raw body, for its digest and for forwarding."""
    endpoint: str = ""
    """The API it came by, where that is neither of the two for completions."""
    chat_body: bytes | None = None
    """The fields of a chat completion that asks the same, where the body is of another API."""

    @property
    def num_answers(self) -> int:
        """How many answers are generated."""
        return self.n if self.best_of is None else self.best_of

    def texts(self) -> tuple[str, ...]:
        """Every piece of text of the request in order (empty for a prompt given as token ids)."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        offered = tuple(tool.text for tool in self.tools)
        return offered + tuple(message.text for message in self.messages)


class Signal(msgspec.Struct, frozen=True):
    """One measured fact about a request: ``domain`` = ``medical`` with probability ``score``."""

    name: str
    value: str
    score: float
    source: str


class Signals(msgspec.Struct, frozen=True):
    """All signals of one request, how much of its text they saw, and what went wrong."""

    items: tuple[Signal, ...] = ()
    scored_tokens: int = 0
    total_tokens: int = 0
    """Both in the classifier's own units; equal unless text was left unscored."""
    classifiers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Classifier name → content hash of its weights or rules."""
    error: str | None = None

    @property
    def truncated(self) -> bool:
        """Whether some of the text was not scored."""
        return self.scored_tokens < self.total_tokens

    def score(self, name: str, value: str) -> float:
        """The score of one value of one signal; 0.0 where no classifier gave it."""
        return max(
            (s.score for s in self.items if s.name == name and s.value == value), default=0.0
        )

    def top(self, name: str) -> Signal | None:
        """The value of ``name`` with the highest score, the first of equals."""
        return max((s for s in self.items if s.name == name), key=lambda s: s.score, default=None)


class DraftSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which draft source a rule uses and how many tokens it may propose per step."""

    source: str = "suffix"
    num_speculative_tokens: int = 8


class SamplingLimits(msgspec.Struct, frozen=True):
    """What the policy caps or fixes; ``None`` leaves the request's own value."""

    max_temperature: float | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    """Used whatever the request asks for, but not above ``max_temperature``."""


class RuleTrace(msgspec.Struct, frozen=True, gc=False):
    """What became of one rule: did it match, and which conditions held on which values."""

    rule: str
    kind: str
    """``ban``, ``limit``, ``decide``, ``deny``; ``request`` for the caller's own wish, ``evidence`` for
    a demotion, whose id is in place of the rule's."""
    matched: bool
    detail: str
    """The condition that settled it, for example ``domain medical 0.93 >= 0.10``."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy chose for one request. Pure content: ids and times are the record's."""

    mode: Mode
    rule: str
    """Rule id, or ``default``, ``on_classifier_error``, ``on_truncated_input``."""
    policy: str
    policy_hash: str
    reason: str = ""
    verifier: str = "coupled"
    max_distortion: float | None = None
    """The total variation that a lossy verifier may put between an answer's law and the target's;
    ``None``: the verifier must be exact."""
    draft: DraftSetting | None = None
    """``None`` exactly when the mode is standard."""
    standard_first: int = 0
    content_tokens: Mode = Mode.SPECULATIVE
    """``standard``: no draft token is proposed where a content token would start or follow."""
    max_entropy: float | None = None
    """Nats: no draft where the target was less sure than that of the token before."""
    hybrid_fallback: Mode = Mode.STANDARD
    """The mode in place of a hybrid one where an upstream cannot continue another's answer."""
    backend: str | None = None
    limits: SamplingLimits = SamplingLimits()
    shadow_rate: float = 0.0
    """The share of requests that are decoded again in standard mode, after the answer."""
    capture: Literal["none", "text"] | None = None
    """Whether prompt and answer are kept; ``None``: as the configuration says."""
    deny: str | None = None
    """The message for the client when the request is refused."""
    bans: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Banned mode → id of the first rule that bans it."""
    forced_by: str | None = None
    """``header`` when the caller's own wish changed the mode."""
    trace: tuple[RuleTrace, ...] = ()

    @property
    def policy_version(self) -> str:
        """The policy's hash as people see it."""
        return self.policy_hash[:SHORT_HASH_LENGTH]


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Those of the prompt that did not have to be computed again."""

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


class ModelInfo(msgspec.Struct, frozen=True):
    """One model that a backend serves."""

    id: str
    created: int
    max_length: int
    """Context length in tokens, prompt and answer together."""
    owned_by: str = "draftgate"
    fingerprint: str = ""
    """Changes when the same seed may give another answer; empty: the backend has only its name."""
    dtype: str = ""
    """Of weights and arithmetic, such as float32; empty: not known."""


class Prompt(msgspec.Struct, frozen=True):
    """A request made ready for one backend: its length, and whatever that backend keeps for itself."""

    num_tokens: int
    payload: Any = None
    grammar: Any = None
    """The request's grammar, likewise made ready."""


class Job(msgspec.Struct, frozen=True):
    """All that a backend needs to generate: the decided request with its final sampling (seed set)."""

    request_id: str
    request: ChatRequest
    decision: Decision
    sampling: Sampling
    prompt: Prompt
    caller_id: str = ""
    """Computed prompts are shared between the jobs of one caller only."""
    domain: str = ""
    """The most probable domain; drafts do well in some and badly in others."""
    review: Review | None = None
    """Whom a backend with an opinion of its own asks whether the decided mode may stand."""
    decision_id: str = ""
    """Of the record; unlike the request's id never the client's own. Empty where none is kept."""
