"""Tells an answer as the Responses API does: items that open, grow and close, in a response."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gateway.api.render import Event, call_id
from gateway.api.responses.items import CallItem, MessageItem, OutputItem
from gateway.api.responses.schemas import ResponsesRequest
from gateway.api.responses.shape import response_id, response_object
from gateway.api.tool_calls import DemandedCall
from gateway.chunk import CallPiece, Chunk
from gateway.errors import GatewayError
from gateway.reply import Receipt
from gateway.types import FinishReason, Message, ToolCall, Usage

Keep = Callable[[Event, Message], None]
"""Told of a response that has ended, and of what it adds to the conversation."""

_CUT_SHORT = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
}


class ResponseTeller:
    """A `gateway.api.told.Teller` of one response."""

    def __init__(
        self, receipt: Receipt, wire: ResponsesRequest, *, demanded: bool, keep: Keep | None
    ) -> None:
        """``demanded``: the answer must be a call. Without ``keep`` nothing is kept."""
        self._receipt = receipt
        self._wire = wire
        self._demanded = DemandedCall() if demanded else None
        self._keep = keep
        self._number = 0
        self._items: list[OutputItem] = []
        self._closed: list[Event] = []
        self._open: OutputItem | None = None
        self._reason: FinishReason | None = None
        self._usage: Usage | None = None
        self._response: Event = {}

    def add(self, chunk: Chunk) -> Sequence[Event]:
        """The events of the next chunk."""
        if self._demanded is not None:
            chunk = self._demanded.read(chunk)
        events = self._begin()
        logprobs = (chunk.logprobs or ()) if self._wire.shows_logprobs else ()
        # A token of a call has its log-probability too, but nowhere to show it.
        if chunk.text or (logprobs and isinstance(self._open, MessageItem) and not chunk.calls):
            message, opened = self._message()
            events += opened + message.add(chunk.text, logprobs)
        for piece in chunk.calls:
            events += self._call(piece)
        self._reason = chunk.finish_reason or self._reason
        if chunk.usage is not None:
            self._usage = Usage(
                # A backend that could only guess before knows now.
                chunk.usage.prompt_tokens or self._receipt.prompt_tokens,
                chunk.usage.completion_tokens,
                chunk.usage.cached_tokens,
            )
        return self._numbered(events)

    def end(self, error: GatewayError | None = None) -> Sequence[Event]:
        """The last item's end, and the response as it has become."""
        events = self._begin()
        if error is not None:
            # Its items stay open: there is no telling what they would have been.
            output = [*self._closed, *([self._open.shown("incomplete")] if self._open else [])]
            self._response = self._shown("failed", output, error=_error(error))
        else:
            if not self._items:
                events += self._message()[1]
            cut = _CUT_SHORT.get(self._reason) if self._reason else None
            status = "incomplete" if cut else "completed"
            events += self._close(status)
            self._response = self._shown(status, self._closed, cut=cut)
            if self._keep is not None:
                self._keep(self._response, self._said())
        events.append(self._event(self._response))
        return self._numbered(events)

    def whole(self) -> Event:
        """The response."""
        return self._response

    def _begin(self) -> list[Event]:
        if self._number:
            return []
        response = self._shown("in_progress", [])
        return [
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
        ]

    def _message(self) -> tuple[MessageItem, list[Event]]:
        """The message that is open, and the events that open it where it was not."""
        if isinstance(self._open, MessageItem):
            return self._open, []
        message = MessageItem(len(self._items), self._item_id("msg"))
        return message, self._follow(message)

    def _call(self, piece: CallPiece) -> list[Event]:
        events: list[Event] = []
        if piece.name is not None:
            call = call_id(self._receipt, 0, piece.index)
            item = CallItem(len(self._items), self._item_id("fc"), call, piece.name)
            events = self._follow(item)
        if piece.arguments and isinstance(self._open, CallItem):
            events += self._open.add(piece.arguments)
        return events

    def _follow(self, item: OutputItem) -> list[Event]:
        """Close the item before, and open this one."""
        events = self._close("completed")
        self._items.append(item)
        self._open = item
        return events + item.begin()

    def _close(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        self._closed.append(item.shown(status))
        return item.end(status)

    def _said(self) -> Message:
        texts = [item.text for item in self._items if isinstance(item, MessageItem)]
        calls = (item for item in self._items if isinstance(item, CallItem))
        return Message(
            "assistant",
            "\n".join(texts) if texts else None,
            tool_calls=tuple(ToolCall(c.name, c.arguments, c.call_id) for c in calls),
        )

    def _shown(
        self,
        status: str,
        output: Sequence[Event],
        *,
        cut: str | None = None,
        error: Event | None = None,
    ) -> Event:
        return response_object(
            self._receipt,
            self._wire,
            status=status,
            output=list(output),
            completed_at=int(time.time()) if status == "completed" else None,
            incomplete_details={"reason": cut} if cut else None,
            error=error,
            usage=self._usage,
        )

    def _event(self, response: Event) -> Event:
        return {"type": f"response.{response['status']}", "response": response}

    def _numbered(self, events: Sequence[Event]) -> Sequence[Event]:
        first, self._number = self._number, self._number + len(events)
        return [
            {"type": event["type"], "sequence_number": number, **event}
            for number, event in enumerate(events, first)
        ]

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{response_id(self._receipt).removeprefix('resp_')}{len(self._items)}"


def _error(error: GatewayError) -> Event:
    code = "rate_limit_exceeded" if error.status == 429 else "server_error"
    return {"code": code, "message": error.message}
