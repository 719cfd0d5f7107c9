"""Drafts from a smaller model of the same vocabulary, with a cache of its own.

It draws with the row's own noise at the row's own positions, as the `coupled` verifier does after it:
where the two models' laws agree the tokens do, and where they differ by TV the tokens differ with
probability at most 2·TV / (1 + TV) (Daliri, Musco and Suresh, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decoders.draft import NO_DRAFT, Dense, Draft, OneHot
from decoders.drafts.base import DraftRequest
from decoders.models.base import LanguageModel, Row
from decoders.noise import NO_TOKEN, Draw, Greedy, choose
from decoders.price import FREE, Price, Reading
from decoders.profile import Profile


@dataclass
class _Memory:
    """What the draft model has read of one sequence."""

    slot: int
    token_ids: list[int] = field(default_factory=list)
    """The tokens in the slot."""
    num_settled: int = 0
    """How many of them are known to be the sequence's, which never changes what it has."""

    def roll_back(self, sequence: Sequence[int]) -> None:
        """Forget what is not the sequence's, and its last token, whose logits are wanted again."""
        end = min(len(self.token_ids), len(sequence) - 1)
        count = min(self.num_settled, end)
        while count < end and self.token_ids[count] == sequence[count]:
            count += 1
        del self.token_ids[count:]
        self.num_settled = count


@dataclass(eq=False)
class _Line:
    """One draft on the way."""

    request: DraftRequest
    memory: _Memory
    num_tokens: int
    """How many to draw."""
    drawn: list[int] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    """[1, vocab] for each drawn token: what it was drawn from; empty where nobody asks."""

    @property
    def num_unread(self) -> int:
        """Tokens of the sequence that the draft model has not read; negative once it draws."""
        return len(self.request.token_ids) - len(self.memory.token_ids)

    @property
    def goes_on(self) -> bool:
        """Whether another token is wanted."""
        return len(self.drawn) < self.num_tokens

    def next_draw(self) -> Draw:
        """The choice of its next token."""
        return Draw(self.request.noise, self.request.position + len(self.drawn), 1)

    def go_on(self, token_id: int, scores: Tensor) -> None:
        """Take a token that was drawn from ``scores`` [1, vocab]; NO_TOKEN ends the draft."""
        if token_id == NO_TOKEN:
            self.num_tokens = len(self.drawn)
            return
        self.drawn.append(token_id)
        if self.states_law:
            self.scores.append(scores)

    @property
    def states_law(self) -> bool:
        """Whether the draft says what it was drawn from."""
        # At temperature 0 nothing was drawn, and a point mass says no more than the token itself.
        return self.request.wants_law and not isinstance(self.request.noise, Greedy)

    def draft(self, source: str) -> Draft:
        """What has been drawn, with the numbers that it was drawn from where they are wanted."""
        if not self.scores:
            return Draft(tuple(self.drawn), source, OneHot())
        law = Dense(self.request.noise.law(torch.cat(self.scores)))
        return Draft(tuple(self.drawn), source, law)


class ModelDraftSource:
    """Lets a draft model say how each sequence goes on, all rows of a step together."""

    name = "model"

    def __init__(
        self,
        draft_model: LanguageModel,
        draft_profile: Profile = FREE,
        *,
        prefill_chunk_tokens: int = 256,
    ) -> None:
        """``draft_model`` is nobody else's: its slots hold this source's sequences.

        All rows together read ``prefill_chunk_tokens`` a step at most, those first that lack least.
        A row has no draft until it has read all; nor has a row for which no slot is left.
        """
        if prefill_chunk_tokens < 1:
            raise ValueError("prefill_chunk_tokens must be at least 1")
        self._model = draft_model
        self._profile = draft_profile
        self._chunk = prefill_chunk_tokens
        self._memories: dict[int, _Memory] = {}
        self._free = set(range(draft_model.num_slots))

    def price(self, request: DraftRequest) -> Price | None:
        """By what the row's slot lacks; None without a slot, or past the draft model's context."""
        if not self._serves(request):
            return None
        memory = self._memories.get(request.sequence_id)
        num_read = 0
        if memory is not None:
            memory.roll_back(request.token_ids)
            num_read = len(memory.token_ids)
        num_behind = len(request.token_ids) - num_read
        return Price(self._profile, num_behind, self._chunk)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request: a pass reads what is new, then one more for each further token."""
        lines = {request.sequence_id: line for request in requests if (line := self._line(request))}
        self._forward(self._to_read(list(lines.values())))
        while parts := [
            (line, (line.drawn[-1],)) for line in lines.values() if line.drawn and line.goes_on
        ]:
            self._forward(parts)
        return [
            lines[request.sequence_id].draft(self.name)
            if request.sequence_id in lines
            else NO_DRAFT
            for request in requests
        ]

    def forget(self, sequence_id: int) -> None:
        """Free the sequence's slot."""
        memory = self._memories.pop(sequence_id, None)
        if memory is not None:
            self._free.add(memory.slot)

    def _room(self, request: DraftRequest) -> int:
        """Tokens that can be drawn within the draft model's context; the last is never read."""
        return self._model.max_length - len(request.token_ids) + 1

    def _serves(self, request: DraftRequest) -> bool:
        """Whether there is room for a draft, and a slot to draw it in."""
        has_slot = request.sequence_id in self._memories or bool(self._free)
        return has_slot and self._room(request) >= 1

    def _line(self, request: DraftRequest) -> _Line | None:
        """A draft to begin, rolled back to where it can; None where `price` is."""
        if not self._serves(request):
            return None
        memory = self._memories.get(request.sequence_id)
        if memory is None:
            # The lowest: attention reads from the first taken slot to the last.
            slot = min(self._free)
            self._free.remove(slot)
            memory = self._memories[request.sequence_id] = _Memory(slot)
        memory.roll_back(request.token_ids)
        return _Line(request, memory, min(request.max_tokens, self._room(request)))

    def _to_read(self, lines: Sequence[_Line]) -> list[tuple[_Line, tuple[int, ...]]]:
        """What each row has not read, those first that lack least, as far as a step's budget goes."""
        reading = Reading(self._chunk)
        parts = []
        for line in sorted(lines, key=lambda line: line.num_unread):
            start = len(line.memory.token_ids)
            if count := reading.take(line.num_unread):
                parts.append((line, tuple(line.request.token_ids[start : start + count])))
        return parts

    def _forward(self, parts: Sequence[tuple[_Line, tuple[int, ...]]]) -> None:
        """Read the tokens of each part; rows that have read all draw their next token."""
        if not parts:
            return
        rows = [
            Row(
                line.memory.slot,
                len(line.memory.token_ids),
                token_ids,
                int(line.num_unread <= len(token_ids)),
            )
            for line, token_ids in parts
        ]
        logits = self._model.forward(rows)
        for line, token_ids in parts:
            line.memory.token_ids.extend(token_ids)
        drawing = [line for (line, _), row in zip(parts, rows, strict=True) if row.num_logits]
        if drawing:
            self._draw(drawing, logits)

    def _draw(self, lines: Sequence[_Line], logits: Tensor) -> None:
        """The next token of each line, from its row of ``logits`` [n, vocab]: one choice for all."""
        own = [logits[i : i + 1] for i in range(len(lines))]
        scores = [
            line.request.process(part, line.drawn) for line, part in zip(lines, own, strict=True)
        ]
        chosen = choose(torch.cat(scores), [line.next_draw() for line in lines])
        for line, (token_id,), row, part in zip(lines, chosen, scores, own, strict=True):
            line.go_on(token_id, row)
            # NO_TOKEN says too that all is forbidden, which is no fault of the slot's.
            if token_id == NO_TOKEN and bool(part.isnan().any()):
                # What is no number in a slot reaches through every mask, so it must not stay.
                self._model.reset(line.memory.slot)
                line.memory.token_ids.clear()
                line.memory.num_settled = 0
