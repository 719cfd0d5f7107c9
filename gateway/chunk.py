"""`Chunk`: a piece of an answer, as a backend gives it and an endpoint writes it down."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gateway.types import FinishReason, Usage


class TokenLogprob(msgspec.Struct, frozen=True):
    """Natural-log probability of one token under the target model, before any processor."""

    token: str
    logprob: float | None
    """None for the first token of an echoed prompt, which follows nothing."""
    token_bytes: bytes
    num_characters: int
    """Those of the text that begin in this token; none for a special one, whatever its name."""
    top: tuple[TokenLogprob, ...] = ()


class CallPiece(msgspec.Struct, frozen=True):
    """A piece of a call of a function: first its name, then its arguments bit by bit."""

    index: int
    """Which of the choice's calls."""
    name: str | None = None
    arguments: str = ""


class Step(NamedTuple):
    """One decode step of a choice; its accepted draft tokens come first among the emitted ones."""

    num_tokens: int
    """Emitted."""
    num_draft_tokens: int
    num_accepted_tokens: int


class Chunk(msgspec.Struct, frozen=True):
    """A piece of one choice of an answer. The last one of a choice carries ``finish_reason``."""

    index: int = 0
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    """On the last chunk of the choice: that choice's own completion tokens. Those of answers that
    were generated and are no choice count with choice 0."""
    calls: tuple[CallPiece, ...] = ()
    """What of calls comes after the text."""
    stop: str | None = None
    """On the last chunk of the choice: the stop string that ended it."""
    steps: tuple[Step, ...] = ()
    """Those since the chunk before, where the backend knows them."""

    @property
    def said(self) -> str:
        """All that the model says in it, calls too."""
        return self.text + "".join((call.name or "") + call.arguments for call in self.calls)
