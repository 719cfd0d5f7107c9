"""Which sequence has which slot, and what the slots still hold of those that have ended.

A prompt that begins like the tokens of another slot takes over their keys and values: in place where
that slot is free, as a copy otherwise. Only within one scope, because a prompt that is quick to
answer tells what was asked before. Called from the engine's thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoders.models.base import PrefixCopier
from decoders.request import Ticket

MIN_SHARED_TOKENS = 16
"""A shorter common beginning is computed again: it costs less than to keep track of."""


@dataclass
class _Slot:
    """One slot: its row while it is taken, and the tokens whose keys and values it holds."""

    index: int
    ticket: Ticket | None = None
    kept: list[int] = field(default_factory=list)
    scope: str = ""
    last_used: int = -1

    @property
    def token_ids(self) -> Sequence[int]:
        """What the slot holds; of a running row also what it will hold."""
        return self.kept if self.ticket is None else self.ticket.sequence.token_ids


class SlotTable:
    """Gives a row its slot, with as much of its prompt in it as is there to be had."""

    def __init__(self, num_slots: int, copier: PrefixCopier | None) -> None:
        self._slots = [_Slot(index) for index in range(num_slots)]
        self._copier = copier
        self._num_released = 0

    @property
    def num_free(self) -> int:
        """Slots without a row."""
        return sum(slot.ticket is None for slot in self._slots)

    def take(self, ticket: Ticket) -> None:
        """Give ``ticket`` a slot; at least one must be free."""
        source, shared = self._most_shared(ticket)
        slot = self._target(source)
        if source is not None and (slot is source or self._fits(source, shared, slot)):
            slot = source
            ticket.num_cached = ticket.stats.num_cached_tokens = shared
        elif source is not None and source.ticket is None:
            # Now, not when its turn comes: the next row may be given the slot that holds it.
            self._copy(source, slot, shared, ticket)
        slot.ticket, slot.scope = ticket, ticket.request.scope
        slot.kept = []
        ticket.slot = slot.index
        if ticket.num_cached == 0 and source is not None and source.ticket is not None:
            ticket.follows = source.ticket if self._copier else None

    def ready(self, ticket: Ticket) -> bool:
        """Whether the row may compute; False while a row before it computes what it can copy."""
        leader = ticket.follows
        if leader is None:
            return True
        source, shared = self._most_shared(ticket)
        ticket.follows = None if source is None else source.ticket
        if source is None:
            return True
        if source.ticket is not None and source.ticket.num_cached < shared:
            return False
        self._copy(source, self._slots[ticket.slot], shared, ticket)
        ticket.follows = None
        return True

    def release(self, ticket: Ticket, num_kept: int) -> None:
        """Take the slot back; its first ``num_kept`` tokens are good."""
        slot = self._slots[ticket.slot]
        slot.ticket = None
        slot.kept = ticket.sequence.token_ids[:num_kept]
        slot.last_used = self._num_released
        self._num_released += 1

    def _most_shared(self, ticket: Ticket) -> tuple[_Slot | None, int]:
        """The slot that holds, or is about to hold, most of the prompt's beginning, and how much.

        The last token of the prompt is always computed: its logits are wanted. So are all of them
        where the prompt's own probabilities are.
        """
        if ticket.scores_prompt:
            return None, 0
        wanted = ticket.sequence.token_ids[: ticket.sequence.num_prompt_tokens - 1]
        best, most = None, MIN_SHARED_TOKENS - 1
        for slot in self._slots:
            waits = slot.ticket is not None and (self._copier is None or slot.ticket.follows)
            if slot.ticket is ticket or waits or slot.scope != ticket.request.scope:
                continue
            shared = common_length(wanted, slot.token_ids)
            # Of equals one that is there already, rather than one that has to be waited for.
            if shared > most or (shared == most and best and best.ticket and not slot.ticket):
                best, most = slot, shared
        return best, most if best else 0

    def _target(self, source: _Slot | None) -> _Slot:
        """The free slot to give up: near the running ones, then the one unused for longest.

        Attention reads from the first running slot to the last, those between included.
        """
        free = [slot for slot in self._slots if slot.ticket is None]
        others = [slot for slot in free if slot is not source]
        return min(others or free, key=lambda slot: (self._apart(slot), slot.last_used, slot.index))

    def _fits(self, source: _Slot, shared: int, other: _Slot) -> bool:
        """Whether to go on in the slot itself: it is free, and ``other`` would be no better."""
        if source.ticket is not None:
            return False
        loses_little = 2 * shared >= len(source.kept) and self._apart(source) <= self._apart(other)
        return self._copier is None or loses_little

    def _apart(self, slot: _Slot) -> int:
        """By how many slots it would widen the range of the running ones."""
        taken = [other.index for other in self._slots if other.ticket is not None]
        return max(0, taken[0] - slot.index, slot.index - taken[-1]) if taken else 0

    def _copy(self, source: _Slot, target: _Slot, length: int, ticket: Ticket) -> None:
        if self._copier is not None and source is not target:
            self._copier.copy_prefix(source.index, target.index, length)
            ticket.num_cached = ticket.stats.num_cached_tokens = length


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    end = min(len(one), len(other))
    # Most prompts differ at once or not at all; comparing slices is quick.
    if one[:MIN_SHARED_TOKENS] != other[:MIN_SHARED_TOKENS]:
        return 0
    if one[:end] == other[:end]:
        return end
    return next(i for i in range(end) if one[i] != other[i])
