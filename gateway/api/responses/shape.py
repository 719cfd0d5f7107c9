"""The response object: what was asked, what was answered, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.api.render import Event
from gateway.api.responses.schemas import ChosenTool, ResponsesRequest, TextConfig
from gateway.reply import Receipt
from gateway.types import Usage


def response_id(receipt: Receipt) -> str:
    """The response's id, made of its decision's."""
    return f"resp_{receipt.decision_id.removeprefix('dec_')}"


def response_object(
    receipt: Receipt,
    wire: ResponsesRequest,
    *,
    status: str,
    output: Sequence[Event],
    completed_at: int | None,
    incomplete_details: Event | None,
    error: Event | None,
    usage: Usage | None,
) -> Event:
    """The response. Parameters are those that were asked for."""
    return {
        "id": response_id(receipt),
        "object": "response",
        "created_at": int(receipt.created_at),
        "status": status,
        "background": False,
        "completed_at": completed_at,
        "error": error,
        "incomplete_details": incomplete_details,
        "instructions": wire.instructions,
        "max_output_tokens": wire.max_output_tokens,
        "max_tool_calls": None,
        "model": wire.model,
        "output": output,
        "parallel_tool_calls": wire.parallel_tool_calls is not False,
        "previous_response_id": wire.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": wire.store is not False,
        "temperature": 1.0 if wire.temperature is None else wire.temperature,
        "text": _text(wire.text),
        "tool_choice": _choice(wire),
        "tools": [_shown(tool) for tool in wire.tools or ()],
        "top_logprobs": wire.top_logprobs or 0,
        "top_p": 1.0 if wire.top_p is None else wire.top_p,
        "truncation": "disabled",
        "usage": None if usage is None else _usage(usage),
        "user": None,
        "metadata": wire.metadata or {},
    }


def _usage(usage: Usage) -> Event:
    return {
        "input_tokens": usage.prompt_tokens,
        # Nothing is charged for what is remembered, so that nothing counts as written.
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def _text(text: TextConfig | None) -> Event:
    given = text.format if text is not None else None
    return {
        "format": {"type": "text"} if given is None else _shown(given),
        "verbosity": "medium",
    }


def _choice(wire: ResponsesRequest) -> Any:
    if wire.tool_choice is None:
        return "auto"
    return (
        _shown(wire.tool_choice) if isinstance(wire.tool_choice, ChosenTool) else wire.tool_choice
    )


def _shown(given: msgspec.Struct) -> Mapping[str, Any]:
    """What was given of it."""
    fields: Mapping[str, Any] = msgspec.to_builtins(given)
    return {name: value for name, value in fields.items() if value is not None}
