"""The items of a response in progress: a message or a call, and the events that tell of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.api.render import Event, token_objects
from gateway.chunk import TokenLogprob


class OutputItem(Protocol):
    """One item, growing."""

    def begin(self) -> list[Event]:
        """The events that open it."""
        ...

    def end(self, status: str) -> list[Event]:
        """The events that close it."""
        ...

    def shown(self, status: str) -> Event:
        """All of it so far."""
        ...


class MessageItem:
    """What the model says."""

    def __init__(self, index: int, item_id: str) -> None:
        self._index = index
        self._id = item_id
        self.text = ""
        self._logprobs: list[Event] = []

    def begin(self) -> list[Event]:
        """The message without content, and the beginning of its text."""
        item = {**self.shown("in_progress"), "content": []}
        return [_added(self._index, item), self._told("content_part.added", part=self._part())]

    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """More text."""
        tokens = token_objects(logprobs)
        self.text += text
        self._logprobs += tokens
        return [self._told("output_text.delta", delta=text, logprobs=tokens)]

    def end(self, status: str) -> list[Event]:
        """The text, the part and the message, whole."""
        return [
            self._told("output_text.done", text=self.text, logprobs=list(self._logprobs)),
            self._told("content_part.done", part=self._part()),
            _done(self._index, self.shown(status)),
        ]

    def shown(self, status: str) -> Event:
        """The message so far."""
        return {
            "id": self._id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [self._part()],
        }

    def _part(self) -> Event:
        return {
            "type": "output_text",
            "annotations": [],
            "logprobs": list(self._logprobs),
            "text": self.text,
        }

    def _told(self, event: str, **fields: object) -> Event:
        return {
            "type": f"response.{event}",
            "item_id": self._id,
            "output_index": self._index,
            "content_index": 0,
            **fields,
        }


class CallItem:
    """One call of a function."""

    def __init__(self, index: int, item_id: str, call_id: str, name: str) -> None:
        self._index = index
        self._id = item_id
        self.call_id = call_id
        self.name = name
        self.arguments = ""

    def begin(self) -> list[Event]:
        """The call without arguments."""
        return [_added(self._index, self.shown("in_progress"))]

    def add(self, arguments: str) -> list[Event]:
        """More of the arguments."""
        self.arguments += arguments
        return [self._told("function_call_arguments.delta", delta=arguments)]

    def end(self, status: str) -> list[Event]:
        """The arguments and the call, whole."""
        return [
            self._told("function_call_arguments.done", name=self.name, arguments=self.arguments),
            _done(self._index, self.shown(status)),
        ]

    def shown(self, status: str) -> Event:
        """The call so far."""
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "arguments": self.arguments,
            "call_id": self.call_id,
            "name": self.name,
        }

    def _told(self, event: str, **fields: object) -> Event:
        return {
            "type": f"response.{event}",
            "item_id": self._id,
            "output_index": self._index,
            **fields,
        }


def _added(index: int, item: Event) -> Event:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _done(index: int, item: Event) -> Event:
    return {"type": "response.output_item.done", "output_index": index, "item": item}
