"""What becomes of each field of today's requests: honoured, refused or ignored.

A field is honoured where its endpoint reads it, and refused where `unsupported` knows that leaving it
out of account would change the answer. What is left changes nothing that a client could miss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.api.messages import schemas as messages
from gateway.api.responses import schemas as responses
from gateway.api.schemas import ChatCompletionRequest, CompletionRequest, SamplingFields
from gateway.api.unsupported import NEUTRAL

IGNORED: Mapping[str, str] = {
    "user": "The caller is known by the API key.",
    "safety_identifier": "The same.",
    "metadata": "Nothing of it is kept; the decision log has its own ids.",
    "store": "No answer is kept here, whatever is asked.",
    "service_tier": "There is one tier.",
    "prompt_cache_key": "A caller's prompts are shared by their beginnings, without a key.",
    "prompt_cache_retention": "How long depends on the room there is.",
    "prompt_cache_options": "The same.",
    "cache_control": "The same, in Anthropic's API.",
    "diagnostics": "It asks for an account of that cache.",
    "inference_geo": "Inference is where this server is.",
    "user_profile_id": "The caller is known by the API key.",
    "workspace_id": "The same.",
}
"""Fields that pass without effect, and why that changes no answer."""

ENDPOINTS: Mapping[str, type[SamplingFields]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": responses.ResponsesRequest,
    "/v1/messages": messages.MessagesRequest,
}

REFUSED: Mapping[str, Collection[str]] = {
    "/v1/responses": {*responses.REFUSED, *responses.RENAMED},
    "/v1/messages": {*messages.REFUSED, *messages.RENAMED},
}
"""Fields that these endpoints refuse besides those of `NEUTRAL`."""


def treatment(field: str, path: str) -> str | None:
    """``honoured``, ``refused`` or ``ignored``; None for a field that nobody has heard of."""
    if field in REFUSED.get(path, ()):
        return "refused"
    if field in ENDPOINTS[path].__struct_fields__:
        return "honoured"
    if field in NEUTRAL:
        return "refused"
    return "ignored" if field in IGNORED else None
