"""Chunks to wire objects: for each endpoint the events of a stream, and the answer as their fold.

Both forms are made of the same chunks by the same code, so that they cannot disagree.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from gateway.chunk import CallPiece, Chunk, TokenLogprob
from gateway.errors import GatewayError
from gateway.reply import Receipt, Reply
from gateway.types import FinishReason, Usage

Event = Mapping[str, Any]


class Choice:
    """One choice, growing as its chunks arrive."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: list[CallPiece] = []
        """Whole ones, in order."""
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self.completion_tokens = 0
        self.cached_tokens = 0

    def add(self, chunk: Chunk) -> None:
        """Append one chunk of this choice."""
        self.text += chunk.text
        for piece in chunk.calls:
            # By its number, not its place: other engines may begin at 1, or leave one out.
            places = (i for i, call in enumerate(self.calls) if call.index == piece.index)
            place = next(places, None)
            if place is None:
                self.calls.append(piece)
            else:
                known = self.calls[place]
                more = known.arguments + piece.arguments
                self.calls[place] = msgspec.structs.replace(known, arguments=more)
        self.logprobs += chunk.logprobs or ()
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if chunk.usage is not None:
            self.completion_tokens = chunk.usage.completion_tokens
            self.cached_tokens = chunk.usage.cached_tokens


class Fold:
    """All choices of an answer, and their usage."""

    def __init__(self, receipt: Receipt, n: int) -> None:
        self.choices = tuple(Choice() for _ in range(n))
        self._prompt_tokens = receipt.prompt_tokens

    @property
    def usage(self) -> Usage:
        """The prompt once, and the tokens of every choice."""
        return Usage(
            self._prompt_tokens,
            sum(choice.completion_tokens for choice in self.choices),
            # The prompt is computed for the first choice; what the others copy of it is not saved.
            min((choice.cached_tokens for choice in self.choices), default=0),
        )

    def add(self, chunk: Chunk) -> None:
        """Append one chunk."""
        self.choices[chunk.index].add(chunk)
        if chunk.usage is not None and chunk.usage.prompt_tokens:
            # A backend that could only guess before knows now.
            self._prompt_tokens = chunk.usage.prompt_tokens


class Rendering(Protocol):
    """How one endpoint writes an answer down."""

    def opening(self, receipt: Receipt) -> Sequence[Event]:
        """The events before the first chunk."""
        ...

    def events(self, receipt: Receipt, chunk: Chunk, before: Choice) -> Sequence[Event]:
        """The events of one chunk; ``before`` is its choice without it."""
        ...

    def whole(self, receipt: Receipt, fold: Fold) -> Event:
        """The answer in one object."""
        ...


async def read_all(reply: Reply, add: Callable[[Chunk], object]) -> None:
    """Hand every chunk of the reply to ``add``. Raises its GatewayError, with the receipt."""
    try:
        async for chunk in reply:
            add(chunk)
    except GatewayError as error:
        error.receipt = reply.receipt
        raise
    finally:
        reply.cancel()


async def whole(reply: Reply, rendering: Rendering, n: int) -> Event:
    """Fold the reply. Raises its GatewayError, with the receipt."""
    fold = Fold(reply.receipt, n)
    await read_all(reply, fold.add)
    return rendering.whole(reply.receipt, fold)


async def stream(
    reply: Reply,
    rendering: Rendering,
    n: int,
    *,
    include_usage: bool,
    include_steps: bool = False,
) -> AsyncIterator[Event]:
    """The events of a stream; raises the reply's GatewayError where it breaks off."""
    receipt = reply.receipt
    fold = Fold(receipt, n)
    extra: Event = {"usage": None} if include_usage else {}
    opened = False
    async for chunk in reply:
        if not opened:  # what fails before the first token is then the first event
            opened = True
            for event in rendering.opening(receipt):
                yield {**event, **extra}
        steps: Event = {"draftgate": {"steps": chunk.steps}} if include_steps else {}
        for event in rendering.events(receipt, chunk, fold.choices[chunk.index]):
            yield {**event, **extra, **steps}
            steps = {}  # once, with what comes first of the chunk
        fold.add(chunk)
    if include_usage:
        yield {**rendering.whole(receipt, Fold(receipt, 0)), "usage": usage_of(fold.usage)}


class ChatRendering:
    """``POST /v1/chat/completions``."""

    def __init__(self, model: str, n: int) -> None:
        self._model = model
        self._n = n

    def opening(self, receipt: Receipt) -> Sequence[Event]:
        """The role of every choice, in order: clients index choices as they first see them."""
        role = {"role": "assistant", "content": "", "refusal": None}
        return [self._event(receipt, index, role) for index in range(self._n)]

    def events(self, receipt: Receipt, chunk: Chunk, before: Choice) -> Sequence[Event]:
        """The text, and apart from it the finish reason with an empty delta."""
        events = []
        if chunk.text or chunk.logprobs:
            delta = {"content": chunk.text}
            events.append(self._event(receipt, chunk.index, delta, logprobs=chunk.logprobs))
        for piece in chunk.calls:
            events.append(
                self._event(
                    receipt,
                    chunk.index,
                    {"tool_calls": [piece_object(receipt, chunk.index, piece)]},
                )
            )
        if chunk.finish_reason is not None:
            events.append(
                self._event(receipt, chunk.index, {}, finish_reason=chunk.finish_reason.value)
            )
        return events

    def whole(self, receipt: Receipt, fold: Fold) -> Event:
        """A ``chat.completion``."""
        if not fold.choices:
            return self._frame(receipt, [])
        choices = [
            {
                "index": index,
                "message": self._message(receipt, index, choice),
                "logprobs": _chat_logprobs(choice.logprobs),
                "finish_reason": choice.finish_reason and choice.finish_reason.value,
            }
            for index, choice in enumerate(fold.choices)
        ]
        return {
            **_head(receipt, "chatcmpl", "chat.completion", self._model),
            "choices": choices,
            "usage": usage_of(fold.usage),
            "system_fingerprint": fingerprint_of(receipt),
        }

    def _message(self, receipt: Receipt, index: int, choice: Choice) -> Event:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [call_object(receipt, index, call) for call in choice.calls]
        return message

    def _event(
        self,
        receipt: Receipt,
        index: int,
        delta: Mapping[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] | None = None,
        finish_reason: str | None = None,
    ) -> Event:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": _chat_logprobs(logprobs),
            "finish_reason": finish_reason,
        }
        return self._frame(receipt, [choice])

    def _frame(self, receipt: Receipt, choices: Sequence[Event]) -> Event:
        return {
            **_head(receipt, "chatcmpl", "chat.completion.chunk", self._model),
            "system_fingerprint": fingerprint_of(receipt),
            "choices": choices,
        }


class CompletionRendering:
    """``POST /v1/completions``."""

    def __init__(self, model: str) -> None:
        self._model = model

    def opening(self, receipt: Receipt) -> Sequence[Event]:
        """Nothing: a completion has no role."""
        return ()

    def events(self, receipt: Receipt, chunk: Chunk, before: Choice) -> Sequence[Event]:
        """The text, together with the finish reason."""
        if not (chunk.text or chunk.logprobs or chunk.finish_reason):
            return ()
        return [
            self._frame(
                receipt,
                [
                    _completion_choice(
                        chunk.index,
                        chunk.text,
                        chunk.logprobs or (),
                        chunk.finish_reason,
                        offset=len(before.text),
                    )
                ],
            )
        ]

    def whole(self, receipt: Receipt, fold: Fold) -> Event:
        """A ``text_completion``."""
        choices = [
            _completion_choice(index, choice.text, choice.logprobs, choice.finish_reason)
            for index, choice in enumerate(fold.choices)
        ]
        return {**self._frame(receipt, choices), "usage": usage_of(fold.usage)}

    def _frame(self, receipt: Receipt, choices: Sequence[Event]) -> Event:
        return {
            **_head(receipt, "cmpl", "text_completion", self._model),
            "choices": choices,
            "system_fingerprint": fingerprint_of(receipt),
        }


def usage_of(usage: Usage) -> Event:
    """The wire form of the token counts."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def fingerprint_of(receipt: Receipt) -> str:
    """Short, and the same as long as the same seed gives the same answer."""
    return f"fp_{hashlib.sha256(receipt.fingerprint.encode()).hexdigest()[:12]}"


def _head(receipt: Receipt, prefix: str, kind: str, model: str) -> Event:
    return {
        "id": f"{prefix}-{receipt.decision_id}",
        "object": kind,
        "created": int(receipt.created_at),
        "model": model,
    }


def call_id(receipt: Receipt, choice: int, call: int = 0) -> str:
    """The id of one call of one choice."""
    first = f"call_{receipt.decision_id.removeprefix('dec_')}{choice}"
    return f"{first}_{call}" if call else first


def call_object(receipt: Receipt, choice: int, call: CallPiece) -> Event:
    """One call as messages hold it."""
    return {
        "id": call_id(receipt, choice, call.index),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def piece_object(receipt: Receipt, choice: int, piece: CallPiece) -> Event:
    """One piece of a call as streams hold it."""
    if piece.name is not None:
        return {"index": piece.index, **call_object(receipt, choice, piece)}
    return {"index": piece.index, "function": {"arguments": piece.arguments}}


def _completion_choice(
    index: int,
    text: str,
    logprobs: Sequence[TokenLogprob],
    finish_reason: FinishReason | None,
    *,
    offset: int = 0,
) -> Event:
    return {
        "text": text,
        "index": index,
        "logprobs": _completion_logprobs(logprobs, offset),
        "finish_reason": finish_reason and finish_reason.value,
    }


def _chat_logprobs(logprobs: Sequence[TokenLogprob] | None) -> Event | None:
    return {"content": token_objects(logprobs), "refusal": None} if logprobs else None


def token_objects(logprobs: Sequence[TokenLogprob]) -> list[Event]:
    """Tokens and their log-probabilities, each with those that were as likely or likelier."""
    return [
        {**_chat_token(token), "top_logprobs": [_chat_token(other) for other in token.top]}
        for token in logprobs
    ]


def _chat_token(token: TokenLogprob) -> Event:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.token_bytes)}


def _completion_logprobs(logprobs: Sequence[TokenLogprob], offset: int) -> Event | None:
    if not logprobs:
        return None
    offsets = []
    for token in logprobs:
        offsets.append(offset)
        offset += token.num_characters
    return {
        "tokens": [token.token for token in logprobs],
        "token_logprobs": [token.logprob for token in logprobs],
        "top_logprobs": [
            None if token.logprob is None else {other.token: other.logprob for other in token.top}
            for token in logprobs
        ],
        "text_offset": offsets,
    }
