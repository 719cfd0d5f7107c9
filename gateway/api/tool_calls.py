"""An answer that is the call of a function, written down as one: whole, or in a stream.

The backend's text is one line of JSON, ``{"name": "f", "arguments": {…}}``, which is what it was held
to; here it is only taken apart. Cut short, it gives as much of the call as there is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.api.render import ChatRendering, Choice, Event, call_object, piece_object
from gateway.chunk import CallPiece, Chunk
from gateway.reply import Receipt
from gateway.types import FinishReason

_HEAD = re.compile(r'\{"name": "([^"]*)", "arguments": ')
# Numbers are only passed over: a long one is no error.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


class Call(msgspec.Struct, frozen=True):
    """As much of a call as has been written."""

    name: str
    arguments: str


def read_call(text: str, finish_reason: FinishReason | None) -> Call | None:
    """The call at the beginning of ``text``; None before its name is there.

    While it goes on, its last character is held back: the brace that closes the call itself.
    """
    head = _HEAD.match(text)
    if head is None:
        return None
    rest = text[head.end() :]
    cut_short = finish_reason not in (None, FinishReason.TOOL_CALLS)
    return Call(head[1], rest if cut_short and not _closed(rest) else rest[:-1])


def call_pieces(before: str, chunk: Chunk) -> tuple[CallPiece, ...]:
    """What ``chunk`` adds to the call, of which ``before`` was there already."""
    written = read_call(before, None)
    now = read_call(before + chunk.text, chunk.finish_reason)
    if now is None:
        return ()
    known = len(written.arguments) if written is not None else 0
    name = (CallPiece(0, now.name),) if written is None else ()
    more = now.arguments[known:]
    return (*name, CallPiece(0, None, more)) if more else name


class DemandedCall:
    """An answer that must be a call, chunk by chunk: the call takes the place of its text."""

    def __init__(self) -> None:
        self._text = ""

    def read(self, chunk: Chunk) -> Chunk:
        """The next chunk, with pieces of the call; of a call there are no log-probabilities."""
        calls = call_pieces(self._text, chunk)
        self._text += chunk.text
        return msgspec.structs.replace(chunk, text="", logprobs=None, calls=calls)


def _closed(rest: str) -> bool:
    """Whether the call is whole: after its arguments comes the brace that closes it."""
    try:
        _, end = _DECODER.raw_decode(rest)
    except (ValueError, RecursionError):
        return False
    return rest[end:] == "}"


class ToolCallRendering(ChatRendering):
    """``POST /v1/chat/completions`` where the answer must be a call."""

    def opening(self, receipt: Receipt) -> Sequence[Event]:
        """The role of every choice, in order."""
        role = {"role": "assistant", "content": None, "refusal": None}
        return [self._event(receipt, index, role) for index in range(self._n)]

    def events(self, receipt: Receipt, chunk: Chunk, before: Choice) -> Sequence[Event]:
        """The name with the call's id, then its arguments piece by piece, then the finish reason."""
        deltas = [piece_object(receipt, chunk.index, p) for p in call_pieces(before.text, chunk)]
        events = [self._event(receipt, chunk.index, {"tool_calls": [delta]}) for delta in deltas]
        if chunk.logprobs:
            events.append(self._event(receipt, chunk.index, {}, logprobs=chunk.logprobs))
        if chunk.finish_reason is not None:
            reason = chunk.finish_reason.value
            events.append(self._event(receipt, chunk.index, {}, finish_reason=reason))
        return events

    def _message(self, receipt: Receipt, index: int, choice: Choice) -> Event:
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        call = read_call(choice.text, choice.finish_reason)
        return (
            message if call is None else {**message, "tool_calls": [_start(receipt, index, call)]}
        )


def _start(receipt: Receipt, index: int, call: Call) -> dict[str, Any]:
    return dict(call_object(receipt, index, CallPiece(0, call.name, call.arguments)))
