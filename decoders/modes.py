"""Decoding modes: how many draft tokens a row may have now, and which of them stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from decoders.draft import NO_DRAFT, Draft
from decoders.drafts.base import DraftSource
from decoders.gates import Gate, GateContext


class Mode(Protocol):
    """A row's mode. Immutable, so that rows may share one."""

    @property
    def name(self) -> str:
        """``standard``, ``speculative`` or ``hybrid``."""
        ...

    def source(self, position: int) -> tuple[DraftSource, int] | None:
        """Which source to ask at output ``position``, and for at most how many tokens; None for none."""
        ...

    def admit(self, draft: Draft, context: GateContext) -> Draft:
        """The part of a draft that stands."""
        ...


class Standard:
    """One token per forward pass, never a draft."""

    name = "standard"

    def source(self, position: int) -> tuple[DraftSource, int] | None:
        """None, at every position."""
        return None

    def admit(self, draft: Draft, context: GateContext) -> Draft:
        """Nothing."""
        return NO_DRAFT


class Speculative:
    """Drafts wherever the source has something to propose."""

    name = "speculative"

    def __init__(self, source: DraftSource, num_speculative_tokens: int = 8) -> None:
        if num_speculative_tokens < 1:
            raise ValueError(
                f"num_speculative_tokens must be at least 1, not {num_speculative_tokens}"
            )
        self._source = source
        self._num_speculative_tokens = num_speculative_tokens

    def source(self, position: int) -> tuple[DraftSource, int] | None:
        """The source, at every position."""
        return self._source, self._num_speculative_tokens

    def admit(self, draft: Draft, context: GateContext) -> Draft:
        """The whole draft."""
        return draft


class Hybrid:
    """Drafts where every gate lets it."""

    name = "hybrid"

    def __init__(
        self, source: DraftSource, gates: Sequence[Gate], num_speculative_tokens: int = 8
    ) -> None:
        self._speculative = Speculative(source, num_speculative_tokens)
        self._gates = tuple(gates)

    def source(self, position: int) -> tuple[DraftSource, int] | None:
        """The source, at every position: gates judge drafts, and its index must see every token."""
        return self._speculative.source(position)

    def admit(self, draft: Draft, context: GateContext) -> Draft:
        """The longest first part that every gate admits."""
        for gate in self._gates:
            draft = draft.first(gate.admit(context, draft.token_ids))
        return draft
