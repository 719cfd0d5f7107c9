"""What a request may need of a server that not every server honours, and who is known to do so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.types import ChatRequest, Sampling

PROBED = ("logprobs", "min_p", "seed", "json_schema", "logit_bias", "continuation")
"""Those that a server's answers show."""
FEATURES = (
    *PROBED,
    "top_k",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "grammar",
)
_EXTENDED = frozenset(
    {"top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids"}
)
_BY_KIND: Mapping[str, frozenset[str]] = {
    "vllm": _EXTENDED
    | {"logprobs", "seed", "logit_bias", "json_schema", "grammar", "continuation"},
    "sglang": _EXTENDED | {"logprobs", "seed", "json_schema", "continuation"},
    "llama.cpp": frozenset({"top_k", "min_p", "logprobs", "seed", "json_schema", "logit_bias"}),
    "draftgate": _EXTENDED | {"logprobs", "seed", "logit_bias", "json_schema", "grammar"},
}
_PLAIN = frozenset({"logprobs", "seed", "json_schema", "logit_bias"})
"""What the OpenAI API itself has."""


def known_of(kind: str) -> frozenset[str]:
    """What servers of this kind are documented to honour; of an unknown kind, what OpenAI's does."""
    return _BY_KIND.get(kind, _PLAIN)


def needs(request: ChatRequest, sampling: Sampling) -> frozenset[str]:
    """What the answer depends on."""
    return frozenset(_needs(request, sampling))


def _needs(request: ChatRequest, sampling: Sampling) -> Iterator[str]:
    plain = Sampling()
    for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos"):
        if getattr(sampling, name) != getattr(plain, name):
            yield name
    if sampling.stop_token_ids:
        yield "stop_token_ids"
    if sampling.logit_bias:
        yield "logit_bias"
    if sampling.logprobs is not None:
        yield "logprobs"
    # One that the gateway drew is for replay only; nobody asked for it.
    if request.sampling.seed is not None:
        yield "seed"
    if request.grammar is not None:
        yield "json_schema" if request.grammar.kind.startswith("json_") else "grammar"


PARAMS: Mapping[str, str] = {"json_schema": "response_format", "grammar": "structured_outputs"}
"""How clients call it where they call it otherwise."""
