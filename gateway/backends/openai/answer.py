"""`Answer`: a server's events as chunks, and what it says beside them: usage and counts of drafts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.backends.openai.failures import of_event
from gateway.chunk import CallPiece, Chunk, TokenLogprob
from gateway.errors import BackendFailed
from gateway.types import ChatRequest, FinishReason, Usage

_REASONS: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
}


class Drafted(msgspec.Struct, frozen=True):
    """What a server counted for one request."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


class Answer:
    """All of one call. Choices that have ended are held back until the usage is there."""

    def __init__(self, request: ChatRequest, where: str) -> None:
        self._request = request
        self._where = where
        self._ends: dict[int, FinishReason] = {}
        self._pieces = [0] * request.n
        self._sizes = [0] * request.n
        self._written: set[int] = set()
        self._num_calls = [0] * request.n
        self._prompt_tokens = self._cached_tokens = 0
        self._completion_tokens: int | None = None
        self.num_said = 0
        """Events with a choice, those included of which nothing is passed on, such as reasoning."""
        self.drafted: Drafted | None = None
        """None where the server says nothing of it."""
        self.fingerprint = ""
        self.text = ""
        """What the first choice has said."""

    @property
    def is_whole(self) -> bool:
        """Whether every choice has ended."""
        return len(self._ends) == self._request.n

    @property
    def usage(self) -> Usage:
        """The server's count; before it is there, a token a piece."""
        tokens = self._completion_tokens
        counted = sum(self._pieces) if tokens is None else tokens
        return Usage(self._prompt_tokens, counted, self._cached_tokens)

    def read(self, data: bytes) -> list[Chunk]:
        """The chunks of one event. Raises BackendFailed for what is none."""
        try:
            event = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise BackendFailed(detail=f"{self._where} sent an event that is no JSON") from None
        if not isinstance(event, dict):
            raise BackendFailed(detail=f"{self._where} sent an event that is no object")
        if event.get("error"):
            raise of_event(event["error"], self._where)
        try:
            self._note(event)
            choices = event.get("choices") or ()
            self.num_said += bool(choices)
            return [chunk for choice in choices if (chunk := self._chunk(choice)) is not None]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            detail = (
                f"{self._where} sent an event that is no answer: {type(error).__name__}: {error}"
            )
            raise BackendFailed(detail=detail) from error

    def endings(self) -> list[Chunk]:
        """The last chunk of each choice. Raises BackendFailed where one has none."""
        if not self.is_whole:
            missing = self._request.n - len(self._ends)
            raise BackendFailed(detail=f"{self._where} ended without an end of {missing} choices")
        calls = FinishReason.TOOL_CALLS
        if any(end is calls and not self._num_calls[index] for index, end in self._ends.items()):
            # Such as one that takes no notice of tool_choice and says something instead.
            raise BackendFailed(detail=f"{self._where} ended a choice with a call, and wrote none")
        return [
            Chunk(index, self._closing(index), finish_reason=self._ends[index], usage=usage)
            for index, usage in enumerate(self._usages())
        ]

    def _closing(self, index: int) -> str:
        """The brace that ends the one call of an answer that had to be one."""
        whole = self._ends[index] is FinishReason.TOOL_CALLS
        return "}" if self._request.called and index in self._written and whole else ""

    def _usages(self) -> list[Usage]:
        """The tokens of the choices. A server says only their sum, so that is shared out by length."""
        total, sizes = self.usage, self._sizes
        shares = [total.completion_tokens * size // max(sum(sizes), 1) for size in sizes]
        shares[0] += total.completion_tokens - sum(shares)
        return [Usage(total.prompt_tokens, share, total.cached_tokens) for share in shares]

    def _note(self, event: Mapping[str, Any]) -> None:
        self.fingerprint = str(event.get("system_fingerprint") or self.fingerprint)
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._prompt_tokens = int(usage.get("prompt_tokens") or 0)
            self._completion_tokens = int(usage.get("completion_tokens") or 0)
            details = usage.get("prompt_tokens_details") or {}
            self._cached_tokens = int(details.get("cached_tokens") or 0)
        self.drafted = _drafted(event) or self.drafted

    def _chunk(self, choice: Mapping[str, Any]) -> Chunk | None:
        index = int(choice.get("index") or 0)
        if not 0 <= index < self._request.n:
            raise ValueError(f"there is no choice {index}")
        delta = choice.get("delta")
        delta = choice if not isinstance(delta, dict) else delta
        text = delta.get("content", choice.get("text")) or ""
        calls = self._calls(index, delta.get("tool_calls") or ())
        if self._request.called:
            text, calls = "".join(self._as_text(index, piece) for piece in calls), ()
        logprobs = _logprobs(choice.get("logprobs"))
        if text or calls or delta.get("reasoning_content") or delta.get("reasoning"):
            self._pieces[index] += 1
            said = sum(len(piece.name or "") + len(piece.arguments) for piece in calls)
            self._sizes[index] += len(text) + said
        if index == 0:
            self.text += text
        if choice.get("finish_reason") is not None:
            self._ends[index] = self._reason(str(choice["finish_reason"]))
        if not (text or calls or logprobs):
            return None
        return Chunk(index, text, logprobs or None, calls=calls)

    def _reason(self, given: str) -> FinishReason:
        reason = _REASONS.get(given)
        if reason is None:
            raise ValueError(f"the finish reason {given!r} is not known")
        if self._request.called and reason is FinishReason.STOP:
            return FinishReason.TOOL_CALLS
        return reason

    def _calls(self, index: int, deltas: Sequence[Mapping[str, Any]]) -> tuple[CallPiece, ...]:
        pieces = []
        for delta in deltas:
            call, function = int(delta.get("index") or 0), delta.get("function") or {}
            name = str(function.get("name") or "")
            is_new = self._is_new(index, call, name)
            if call > 0 and (self._request.called or not self._request.several_calls):
                continue
            if is_new:
                pieces.append(CallPiece(call, name))
            if function.get("arguments"):
                pieces.append(CallPiece(call, None, str(function["arguments"])))
        return tuple(pieces)

    def _is_new(self, index: int, call: int, name: str) -> bool:
        """Whether a call begins. Raises ValueError where it may not, or not here, or has no name."""
        if not 0 <= call <= self._num_calls[index]:
            raise ValueError(f"the call {call} comes before the one ahead of it")
        if call < self._num_calls[index]:
            return False
        if not name:
            raise ValueError(f"the call {call} has no name")
        if call == 0 and self._request.called and name not in self._request.called:
            raise ValueError(f"the call is of {name!r}, which was not to be called")
        self._num_calls[index] += 1
        return True

    def _as_text(self, index: int, piece: CallPiece) -> str:
        """The one call of an answer that must be one, as our own engine writes it."""
        if piece.name is None:
            return piece.arguments
        if index in self._written:
            return ""
        self._written.add(index)
        return f'{{"name": {json.dumps(piece.name)}, "arguments": '


def _drafted(event: Mapping[str, Any]) -> Drafted | None:
    """vLLM's metrics of a request, or llama.cpp's timings of one."""
    metrics = event.get("metrics")
    counts = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if isinstance(counts, dict):
        return _counts(counts, "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    timings = event.get("timings")
    if isinstance(timings, dict):
        return _counts(timings, "", "draft_n", "draft_n_accepted")
    return None


def _counts(found: Mapping[str, Any], drafts: str, proposed: str, accepted: str) -> Drafted | None:
    """None where the draft tokens are not counted: that is no count of none."""
    values = [found.get(name) for name in (drafts, proposed, accepted)]
    numbers = [value if isinstance(value, int) and value >= 0 else None for value in values]
    if numbers[1] is None:
        return None
    return Drafted(*(number or 0 for number in numbers))


def _logprobs(found: Any) -> tuple[TokenLogprob, ...]:
    if not isinstance(found, dict):
        return ()
    if isinstance(found.get("content"), list):
        return tuple(_chat_token(entry) for entry in found["content"])
    tokens, values = found.get("tokens"), found.get("token_logprobs")
    if not tokens or not values:
        return ()
    tops = found.get("top_logprobs") or [None] * len(tokens)
    return tuple(
        _token(token, value, tuple(_token(*likely) for likely in (top or {}).items()))
        for token, value, top in zip(tokens, values, tops, strict=True)
    )


def _chat_token(entry: Mapping[str, Any]) -> TokenLogprob:
    top = tuple(
        _token(likely["token"], likely["logprob"], raw=likely.get("bytes"))
        for likely in entry.get("top_logprobs") or ()
    )
    return _token(entry["token"], entry["logprob"], top, entry.get("bytes"))


def _token(
    token: str,
    logprob: float | None,
    top: tuple[TokenLogprob, ...] = (),
    raw: Sequence[int] | None = None,
) -> TokenLogprob:
    written = token.encode() if raw is None else bytes(raw)
    begun = sum(byte & 0xC0 != 0x80 for byte in written)
    return TokenLogprob(token, logprob, written, begun, top)
