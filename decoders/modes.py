"""Decoding modes: how many draft tokens a row may have now, and which of them stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, overload

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

    def opens(self, context: GateContext) -> bool:
        """Whether a draft might stand, as far as it can be told before there is one."""
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

    def opens(self, context: GateContext) -> bool:
        """Never."""
        return False

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

    def opens(self, context: GateContext) -> bool:
        """Always."""
        return True

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

    def opens(self, context: GateContext) -> bool:
        """Where every gate does."""
        return all(gate.opens(context) for gate in self._gates)

    def admit(self, draft: Draft, context: GateContext) -> Draft:
        """The longest first part that every gate admits.

        A gate that has looked at the tokens has selected, even where it lets all of them stand: the
        draft is judged as given from then on.
        """
        for gate in self._gates:
            seen = _Glance(draft.token_ids)
            count = gate.admit(context, seen)
            draft = draft.select(count).one_hot() if seen.looked else draft.first(count)
        return draft


class _Glance(Sequence[int]):
    """The tokens of a draft, and whether anybody has looked at one. Their number is no secret."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = token_ids
        self.looked = False

    def __len__(self) -> int:
        return len(self._token_ids)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        self.looked = True
        return self._token_ids[index]
