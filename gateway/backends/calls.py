"""Calls of functions in a model's own words: told apart from text, while they are being written.

Models learn a way to write calls together with their chat template. Two ways are read here, and
nothing is guessed: what does not hold a whole head of a call to an offered function is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from gateway.chunk import CallPiece, Chunk
from gateway.types import ChatRequest, FinishReason

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BARE_MARKERS = ("[TOOL_CALLS]", "<|python_tag|>")
_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL
)
_DECODER = json.JSONDecoder()


class CallFormat(StrEnum):
    """How a family of models writes calls."""

    TAGGED = "tagged"
    """Hermes and Qwen: JSON between ``<tool_call>`` and ``</tool_call>``, among text."""
    BARE = "bare"
    """Llama and Mistral: the answer is JSON, one call or a list, perhaps behind a marker."""


def format_of(template: str) -> CallFormat | None:
    """What a chat template says of how its model writes calls; None where it is not one of ours."""
    if "<function=" in template:  # the same tags, with something else than JSON between them
        return None
    if _OPEN in template:
        return CallFormat.TAGGED
    if "[ARGS]" in template:
        return None
    llama = '"parameters"' in template or "<|python_tag|>" in template
    return CallFormat.BARE if llama or "[TOOL_CALLS]" in template else None


class CallReader:
    """Reads one answer piece by piece: what of it is text, and what are calls."""

    def __init__(self, form: CallFormat, names: Collection[str], *, several: bool = True) -> None:
        """``names`` are the functions offered; without ``several``, calls after the first are dropped."""
        self._tagged = form is CallFormat.TAGGED
        self._names = names
        self._several = several
        self._rest = ""
        self._begun = False
        self._count = 0
        self._state: _Text | _Call = _Text()
        self._last = False

    @property
    def complete(self) -> bool:
        """Whether there are calls, and each has its end."""
        return self._count > 0 and not (isinstance(self._state, _Call) and self._state.named)

    def feed(self, text: str, *, last: bool = False) -> tuple[str, tuple[CallPiece, ...]]:
        """The text and the calls that are known with ``text``; with ``last``, all the rest."""
        self._rest += text
        self._last = last
        shown: list[str] = []
        calls: list[CallPiece] = []
        while self._step(shown, calls):
            pass
        kept = calls if self._several else [piece for piece in calls if piece.index == 0]
        return "".join(shown), tuple(kept)

    def _step(self, shown: list[str], calls: list[CallPiece]) -> bool:
        """Read on by one thing; False when there is nothing more to know yet."""
        if isinstance(self._state, _Call):
            return self._read_call(self._state, shown, calls)
        return self._read_tagged(shown) if self._tagged else self._read_bare(shown)

    def _read_tagged(self, shown: list[str]) -> bool:
        before, found, after = self._rest.partition(_OPEN)
        if found:
            shown.append(before.rstrip())
            self._rest, self._state = after, _Call(found)
            return True
        if self._last:
            if not self._count or self._rest.strip():
                shown.append(self._rest)
            self._rest = ""
            return False
        # Space before a call is no text, and neither is the beginning of its mark.
        kept = len(before) - len(_without_beginning(before, _OPEN).rstrip())
        cut = len(before) - kept
        shown.append(before[:cut])
        self._rest = before[cut:]
        return False

    def _read_bare(self, shown: list[str]) -> bool:
        start = self._rest.lstrip(" \t\r\n" if not self._count else " \t\r\n,;]")
        if not self._begun:
            if not start and not self._last:
                return False
            for marker in _BARE_MARKERS:
                if not self._last and marker.startswith(start):
                    return False
                start = start.removeprefix(marker)
            start = start.lstrip()
            inside = start.removeprefix("[").lstrip()
            if not self._last and not inside:
                return False
            if inside.startswith("{"):
                self._begun = True
                self._state, self._rest = _Call(self._rest[: len(self._rest) - len(inside)]), inside
                return True
        elif start.startswith("{") and self._count:
            self._state, self._rest = _Call(""), start
            return True
        elif self._count and not start:
            self._rest = "" if self._last else self._rest
            return False
        self._begun = True
        shown.append(self._rest)
        self._rest = ""
        return False

    def _read_call(self, call: _Call, shown: list[str], calls: list[CallPiece]) -> bool:
        if call.named:
            return self._read_arguments(call, calls)
        head = _HEAD.match(self._rest.lstrip())
        if head and head[1] in self._names:
            call.named = True
            call.raw = ""
            self._rest = self._rest.lstrip()[head.end() :]
            calls.append(CallPiece(self._count, head[1]))
            self._count += 1
            return True
        if head is None and (whole := self._decoded()) is not None:
            found, rest = whole
            if (written := _call_of(found, self._names)) is not None:
                name, arguments = written
                calls += [CallPiece(self._count, name), CallPiece(self._count, None, arguments)]
                self._count += 1
                self._rest = self._after(rest)
                self._state = _Text()
                return True
        elif head is None and not self._last and not self._hopeless():
            return False
        shown.append(call.raw)
        self._state = _Text()
        if self._tagged:
            return True
        shown.append(self._rest)
        self._rest, self._begun = "", True
        return False

    def _read_arguments(self, call: _Call, calls: list[CallPiece]) -> bool:
        if call.depth or not call.started:
            taken = call.take(self._rest)
            if taken:
                calls.append(CallPiece(self._count - 1, None, self._rest[:taken]))
            self._rest = self._rest[taken:]
            if call.depth or not call.started:
                return False
        # What closes the call itself comes with or after the last of its arguments.
        rest = self._rest.lstrip()
        if not rest.startswith("}") and not self._last:
            return False
        after = self._after(rest.removeprefix("}"))
        if after is None:
            return False
        self._rest, self._state = after, _Text()
        return not (self._last and not self._rest)

    def _after(self, rest: str) -> Any:
        """What follows a call; None where its closing mark is not all there yet."""
        if not self._tagged:
            return rest
        bare = rest.lstrip()
        if bare.startswith(_CLOSE):
            return bare.removeprefix(_CLOSE)
        return None if not self._last and _CLOSE.startswith(bare) else rest

    def _decoded(self) -> tuple[Any, str] | None:
        """The JSON object at the beginning, and what follows it."""
        text = self._rest.lstrip()
        if "}" not in text:
            return None
        try:
            found, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return None
        rest = text[end:]
        if self._after(rest) is None:
            return None
        return found, rest

    def _hopeless(self) -> bool:
        """Whether what follows a mark can be no call any more."""
        text = self._rest.lstrip()
        return bool(text) and not text.startswith("{")


def reader_of(form: CallFormat, request: ChatRequest) -> CallReader:
    """What reads one choice of a request that may call."""
    names = frozenset(tool.name for tool in request.tools)
    return CallReader(form, names, several=request.several_calls)


def calling(form: CallFormat, request: ChatRequest, chunks: Sequence[Chunk]) -> list[Chunk]:
    """The chunks of one choice, its text read."""
    reader = reader_of(form, request)
    return [with_calls(reader, chunk) for chunk in chunks]


def with_calls(reader: CallReader, chunk: Chunk) -> Chunk:
    """The next chunk of a choice, read; one that ends by itself in calls says so."""
    reason = chunk.finish_reason
    text, calls = reader.feed(chunk.text, last=reason is not None)
    if reason is FinishReason.STOP and reader.complete:
        reason = FinishReason.TOOL_CALLS
    return msgspec.structs.replace(chunk, text=text, calls=calls, finish_reason=reason)


class _Text:
    """Between calls."""


class _Call:
    """In a call: first its head, then the braces of its arguments, counted."""

    def __init__(self, raw: str) -> None:
        self.raw = raw
        self.named = self.started = False
        self.depth = 0
        self._quoted = self._escaped = False

    def take(self, text: str) -> int:
        """How many characters of ``text`` belong to the arguments."""
        for place, character in enumerate(text):
            self.started = True
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = character == "\\"
                self._quoted = character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self.depth += 1
            elif character in "}]":
                self.depth -= 1
                if self.depth == 0:
                    return place + 1
        return len(text)


def _call_of(found: Any, names: Collection[str]) -> tuple[str, str] | None:
    """Name and arguments of an object that is a call, in whatever order it has them."""
    if not isinstance(found, dict) or found.get("name") not in names:
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        return found["name"], arguments
    return found["name"], json.dumps(arguments, ensure_ascii=False)


def _without_beginning(text: str, mark: str) -> str:
    """``text`` without what may be the beginning of ``mark`` at its end."""
    ends: Sequence[int] = range(min(len(mark) - 1, len(text)), 0, -1)
    length = next((n for n in ends if text.endswith(mark[:n])), 0)
    return text[: len(text) - length]
