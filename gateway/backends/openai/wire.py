"""The body that an arm is sent: the client's own, but for what the gateway has judged or decided.

Top-level fields keep their bytes, unknown ones too. What the policy has read is written anew as it was
read, so that no server can read it otherwise; and what would tell a server how to decode is left out.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.arguments import parsed
from gateway.errors import InvalidRequest
from gateway.types import ChatRequest, Job, Message, Sampling, Tool

_encoder = msgspec.json.Encoder()
_NAMES_LEFT_OUT = frozenset(
    {
        "best_of",
        "custom_logit_processor",
        "data_parallel_rank",
        "disable_spec_decode",
        "echo",
        "id_slot",
        "input_embeds",
        "input_ids",
        "kv_transfer_params",
        "lora",
        "lora_path",
        "messages",
        "model",
        "priority",
        "prompt",
        "prompt_embeds",
        "request_id",
        "rid",
        "session_params",
        "stream",
        "stream_options",
        "vllm_xargs",
    }
)
_BEGINNINGS_LEFT_OUT = ("speculative", "spec_", "draft", "bootstrap_")
"""A server that lets a request choose how it is decoded must not let it here: the policy does."""

_EXTENDED = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")


def path_of(request: ChatRequest) -> str:
    """Where it is sent, below ``/v1``."""
    return "/chat/completions" if request.prompt is None else "/completions"


def refuse_unreadable_calls(request: ChatRequest) -> None:
    """Raise InvalidRequest for past calls of which nobody can say how a server would read them."""
    for index, message in enumerate(request.messages):
        for number, call in enumerate(message.tool_calls):
            if call.arguments and parsed(call.arguments) is None:
                param = f"messages[{index}].tool_calls[{number}].function.arguments"
                raise InvalidRequest(
                    f"{param!r} must be the text of a JSON object, not nested deeply; this model "
                    "reads no other.",
                    param=param,
                )


def body_of(
    job: Job,
    model: str,
    honours: Collection[str],
    *,
    sampling: Sampling | None = None,
    prefix: str = "",
) -> bytes:
    """The body for an arm that honours so much.

    ``sampling`` in place of the job's. ``prefix``: what of the answer is there already.
    """
    request, sampling = job.request, sampling or job.sampling
    given = _given(request.body if request.chat_body is None else request.chat_body)
    fields = {name: value for name, value in given.items() if not _is_left_out(name)}
    ours: dict[str, Any] = {
        "model": model,
        **_asked(request, prefix),
        **_sampling(sampling, fields, honours),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.n > 1:
        ours["n"] = request.n
    if request.tools:
        ours["tools"] = [_tool(tool) for tool in request.tools]
    _set_length(ours, fields, sampling.max_tokens)
    _set_logprobs(ours, request, sampling)
    return _encoder.encode({**fields, **ours})


def _given(body: bytes) -> Mapping[str, msgspec.Raw]:
    return msgspec.json.decode(body, type=dict[str, msgspec.Raw]) if body else {}


def _is_left_out(name: str) -> bool:
    return name in _NAMES_LEFT_OUT or name.lower().startswith(_BEGINNINGS_LEFT_OUT)


def _asked(request: ChatRequest, prefix: str) -> dict[str, Any]:
    if request.prompt is not None:
        if isinstance(request.prompt, str):
            return {"prompt": request.prompt + prefix}
        return {"prompt": list(request.prompt)}
    turns = [_turn(message) for message in request.messages]
    if not prefix:
        return {"messages": turns}
    return {
        "messages": [*turns, {"role": "assistant", "content": prefix}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }


def _turn(message: Message) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.refusal is not None:
        turn["refusal"] = message.refusal
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _arguments(given: str) -> str:
    """Without escapes that need not be, and each key once: as the policy has read them."""
    found = parsed(given)
    return given if found is None else json.dumps(found, ensure_ascii=False)


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": msgspec.Raw(tool.parameters.encode()),
        },
    }


def _sampling(
    sampling: Sampling, given: Collection[str], honours: Collection[str]
) -> dict[str, Any]:
    """As the record says that it was decoded, defaults too: servers have others of their own."""
    ours: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if "seed" in honours:
        ours["seed"] = sampling.seed
    plain = Sampling()
    for name in _EXTENDED:
        value = getattr(sampling, name)
        if name in honours and (name in _ALWAYS or value != getattr(plain, name)):
            ours[name] = value
    if "top_k" in ours:
        ours["top_k"] = sampling.top_k or -1
    for name in ("frequency_penalty", "presence_penalty"):
        if getattr(sampling, name):
            ours[name] = getattr(sampling, name)
    for name, many in (("stop", sampling.stop), ("stop_token_ids", sampling.stop_token_ids)):
        if many and name not in given:
            ours[name] = list(many)
    if sampling.logit_bias and "logit_bias" not in given:
        ours["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return ours


_ALWAYS = ("top_k", "min_p", "repetition_penalty")
"""Those for which servers take values from the model's own files."""


def _set_length(ours: dict[str, Any], fields: dict[str, Any], longest: int | None) -> None:
    name = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    if longest is not None:
        fields.pop("max_tokens", None)
        ours[name] = longest


def _set_logprobs(ours: dict[str, Any], request: ChatRequest, sampling: Sampling) -> None:
    if sampling.logprobs is None:
        return
    if request.prompt is not None:
        ours["logprobs"] = sampling.logprobs
        return
    ours["logprobs"] = True
    if sampling.logprobs:
        ours["top_logprobs"] = sampling.logprobs


def headers_of(job: Job, key: str | None) -> dict[str, str]:
    """What an arm is told beside the body: no credential of the client's."""
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream",
    }
    for name in _PASSED_ON:
        if name in job.request.headers:
            headers[name] = job.request.headers[name]
    return {**headers, **authorization(key)}


def attempt_ids(job: Job) -> Iterator[str]:
    """An id for each time that a server is asked: some take ours for their own and refuse a second
    that is alike, and the request's may be its client's choice."""
    base = job.decision_id or secrets.token_hex(10)
    return (f"{base}-{number}" for number in itertools.count(1))


_PASSED_ON: Sequence[str] = ("traceparent", "tracestate", "x-request-timeout")


def authorization(key: str | None) -> dict[str, str]:
    """The header that holds a key, if there is one."""
    return {} if key is None else {"authorization": f"Bearer {key}"}
