"""Tells an answer as Anthropic's API does: blocks of text and of tool use, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.api.messages.errors import message_error
from gateway.api.render import Event, call_id
from gateway.api.tool_calls import DemandedCall
from gateway.chunk import CallPiece, Chunk
from gateway.errors import GatewayError
from gateway.reply import Receipt
from gateway.types import FinishReason, Usage

_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CONTENT_FILTER: "refusal",
}


class MessageTeller:
    """A `gateway.api.told.Teller` of one message."""

    def __init__(self, receipt: Receipt, model: str, *, demanded: bool) -> None:
        """``demanded``: the answer must be a call."""
        self._receipt = receipt
        self._model = model
        self._demanded = DemandedCall() if demanded else None
        self._begun = False
        self._blocks: list[dict[str, Any]] = []
        """A tool's input is JSON text until the end."""
        self._open = False
        self._reason: str | None = None
        self._stop: str | None = None
        self._usage = Usage(receipt.prompt_tokens)

    def add(self, chunk: Chunk) -> Sequence[Event]:
        """The events of the next chunk."""
        if self._demanded is not None:
            chunk = self._demanded.read(chunk)
        events = self._begin()
        if chunk.text:
            events += self._say(chunk.text)
        for piece in chunk.calls:
            events += self._call(piece)
        if chunk.finish_reason is not None:
            # After whole calls a stop string is not what the client has to know.
            self._stop = chunk.stop if chunk.finish_reason is FinishReason.STOP else None
            self._reason = "stop_sequence" if self._stop else _REASONS.get(chunk.finish_reason)
        if chunk.usage is not None:
            self._usage = Usage(
                # A backend that could only guess before knows now.
                chunk.usage.prompt_tokens or self._receipt.prompt_tokens,
                chunk.usage.completion_tokens,
                chunk.usage.cached_tokens,
            )
        return events

    def end(self, error: GatewayError | None = None) -> Sequence[Event]:
        """The last block's end, why the message ends, and its usage; or the error alone."""
        if error is not None:
            failed: Event = msgspec.to_builtins(message_error(error, self._receipt.request_id))
            return [failed]
        return [
            *self._begin(),
            *self._close(),
            {
                "type": "message_delta",
                "delta": {"stop_reason": self._reason, "stop_sequence": self._stop},
                "usage": self._shown_usage(),
            },
            {"type": "message_stop"},
        ]

    def whole(self) -> Event:
        """The message."""
        return {
            "id": f"msg_{self._receipt.decision_id.removeprefix('dec_')}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [_shown(block) for block in self._blocks],
            "stop_reason": self._reason,
            "stop_sequence": self._stop,
            "usage": self._shown_usage(),
        }

    def _begin(self) -> list[Event]:
        if self._begun:
            return []
        self._begun = True
        return [{"type": "message_start", "message": self.whole()}]

    def _say(self, text: str) -> list[Event]:
        events: list[Event] = []
        if not self._open or self._blocks[-1]["type"] != "text":
            events = self._follow({"type": "text", "text": ""})
        self._blocks[-1]["text"] += text
        return [*events, self._delta({"type": "text_delta", "text": text})]

    def _call(self, piece: CallPiece) -> list[Event]:
        events: list[Event] = []
        if piece.name is not None:
            # Clients tell calls from other ids by how these begin.
            use = f"toolu_{call_id(self._receipt, 0, piece.index).removeprefix('call_')}"
            events = self._follow({"type": "tool_use", "id": use, "name": piece.name, "input": ""})
        if piece.arguments:
            self._blocks[-1]["input"] += piece.arguments
            delta = {"type": "input_json_delta", "partial_json": piece.arguments}
            events.append(self._delta(delta))
        return events

    def _follow(self, block: dict[str, Any]) -> list[Event]:
        """Close the block before, and open this one."""
        events = self._close()
        self._blocks.append(block)
        self._open = True
        shown = _shown(block)
        return [*events, {**self._named("content_block_start"), "content_block": shown}]

    def _close(self) -> list[Event]:
        if not self._open:
            return []
        self._open = False
        return [self._named("content_block_stop")]

    def _delta(self, delta: Event) -> Event:
        return {**self._named("content_block_delta"), "delta": delta}

    def _named(self, name: str) -> Event:
        return {"type": name, "index": len(self._blocks) - 1}

    def _shown_usage(self) -> Event:
        usage = self._usage
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }


def _shown(block: dict[str, Any]) -> Event:
    return {**block, "input": _input(block["input"])} if "input" in block else dict(block)


def _input(arguments: str) -> Event:
    """The object; empty where the call was cut short, which its stop reason says."""
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
