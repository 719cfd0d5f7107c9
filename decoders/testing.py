"""Helpers for proofs and tests, shipped because extenders need them too.

`TableModel` is a model whose law is a function you write down; `enumerate_law` replays code over
every branch of every random choice and sums the weights, so that what it emits can be compared with
what it should, to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from decoders.constraints import ConstraintError
from decoders.draft import Dense, Draft
from decoders.drafts.base import DraftRequest
from decoders.models.base import Row, Watcher
from decoders.noise import Purpose

Law = Callable[[tuple[int, ...]], Sequence[float]]


class TableModel:
    """A model of a few tokens: ``law(prefix)`` gives the probabilities of the next token.

    It keeps the tokens of each slot as its cache and believes only those, so a wrong start, slot or
    rollback changes what it says.
    """

    def __init__(
        self, law: Law, vocab_size: int, *, num_slots: int = 4, max_length: int = 64
    ) -> None:
        self._law = law
        self._slots = [[-1] * max_length for _ in range(num_slots)]
        self.vocab_size = vocab_size
        self.num_slots = num_slots
        self.max_length = max_length
        self.num_forwards = 0
        self.num_tokens = 0
        self.num_copies = 0
        self._watcher: Watcher | None = None

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """Log-probabilities, float32 [sum of num_logits, vocab_size]."""
        self.num_forwards += 1
        self.num_tokens += sum(len(row.token_ids) for row in rows)
        logits = []
        for row in rows:
            cache = self._slots[row.slot]
            stop = row.start + len(row.token_ids)
            cache[row.start : stop] = row.token_ids
            logits += [
                self._logits(tuple(cache[: at + 1])) for at in range(stop - row.num_logits, stop)
            ]
        if self._watcher is not None:
            self._show(rows, self._watcher)
        return torch.tensor(logits, dtype=torch.float64).reshape(len(logits), self.vocab_size)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy what slot ``source`` believes."""
        self._slots[target][:length] = self._slots[source][:length]
        self.num_copies += 1

    def reset(self, slot: int) -> None:
        """Forget the tokens of a slot."""
        self._slots[slot] = [-1] * self.max_length

    def watch(self, watcher: Watcher) -> None:
        """Show each token as its hidden state after any layer: one-hot, [n, vocab_size]."""
        self._watcher = watcher

    def _show(self, rows: Sequence[Row], watcher: Watcher) -> None:
        token_ids = [token_id for row in rows for token_id in row.token_ids]
        places = [
            row.slot * self.max_length + row.start + i
            for row in rows
            for i in range(len(row.token_ids))
        ]
        state = torch.eye(self.vocab_size)[token_ids]
        watcher.see(torch.tensor(places), [state for _ in watcher.layers])

    def _logits(self, prefix: tuple[int, ...]) -> list[float]:
        return [math.log(mass) if mass > 0 else -math.inf for mass in self._law(prefix)]


class CharacterTokenizer:
    """Each token id is one character of ``alphabet``; ``eos_ids`` end an answer and have no text."""

    def __init__(self, alphabet: str, eos_ids: Sequence[int] = ()) -> None:
        self._alphabet = alphabet
        self.eos_ids = frozenset(eos_ids)

    def encode(self, text: str) -> list[int]:
        """One id per character."""
        return [self._alphabet.index(character) for character in text]

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """All contents, one after the other; no tools."""
        return self.encode("".join(str(message["content"]) for message in messages))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The characters of the ids that are not special."""
        return "".join(self._alphabet[i] for i in token_ids if i not in self.eos_ids)


class ScriptedDraftSource:
    """Proposes whatever ``script(token_ids, max_tokens)`` returns, and notes who has ended."""

    name = "scripted"

    def __init__(self, script: Callable[[Sequence[int], int], Sequence[int]]) -> None:
        self._script = script
        self.forgotten: list[int] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, as the script says it."""
        return [self._scripted(request) for request in requests]

    def forget(self, sequence_id: int) -> None:
        """Note it."""
        self.forgotten.append(sequence_id)

    def _scripted(self, request: DraftRequest) -> Draft:
        token_ids = tuple(self._script(request.token_ids, request.max_tokens))
        return Draft(token_ids, self.name, from_context=True)


class SampledDraftSource(ScriptedDraftSource):
    """Draws its drafts from the law that ``draft_law(token_ids)`` states, with the row's own noise."""

    name = "sampled"

    def __init__(self, draft_law: Law) -> None:
        super().__init__(lambda token_ids, max_tokens: ())
        self._draft_law = draft_law

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, of its full length."""
        return [self._draw(request) for request in requests]

    def _draw(self, request: DraftRequest) -> Draft:
        drawn: list[int] = []
        laws = []
        for i in range(request.max_tokens):
            law = torch.tensor(self._draft_law((*request.token_ids, *drawn)), dtype=torch.float64)
            scores = law.log().unsqueeze(0)
            drawn.append(request.noise.choose(scores, request.position + i)[0])
            laws.append(request.noise.law(scores[0]))
        return Draft(tuple(drawn), self.name, law=Dense(torch.stack(laws)))


class ScriptedConstraint:
    """Allows what ``rule(output)`` names after the tokens ``output``."""

    def __init__(self, rule: Callable[[tuple[int, ...]], Collection[int]], vocab_size: int) -> None:
        self._rule = rule
        self._vocab_size = vocab_size
        self._output: tuple[int, ...] = ()

    def allowed(self, draft_ids: Sequence[int]) -> Tensor:
        """The rule along the draft, wherever that leads."""
        rows = torch.zeros(len(draft_ids) + 1, self._vocab_size, dtype=torch.bool)
        for i in range(len(draft_ids) + 1):
            rows[i, list(self._rule((*self._output, *draft_ids[:i])))] = True
        return rows

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        """How far the rule goes along."""
        for i, token_id in enumerate(token_ids):
            if token_id not in self._rule((*self._output, *token_ids[:i])):
                return i
        return len(token_ids)

    def accept(self, token_ids: Sequence[int]) -> None:
        """Note them."""
        if self.count_allowed(token_ids) < len(token_ids):
            raise ConstraintError(f"not allowed: {token_ids} after {self._output}")
        self._output = (*self._output, *token_ids)


class Branches:
    """A source of choices that is replayed once for every combination of outcomes."""

    def __init__(self) -> None:
        self._path: list[tuple[int, int]] = []  # (outcome taken, number of outcomes)
        self._depth = 0
        self.weight = 1.0

    def pick(self, law: Sequence[float]) -> int:
        """The next outcome in this replay, an index into ``law``; outcomes of mass 0 are left out."""
        outcomes = [i for i, mass in enumerate(law) if mass > 0]
        if self._depth == len(self._path):
            self._path.append((0, len(outcomes)))
        taken, _ = self._path[self._depth]
        self._depth += 1
        self.weight *= law[outcomes[taken]]
        return outcomes[taken]

    def rewind(self) -> bool:
        """Go on to the next combination; False when all have been replayed."""
        while self._path and self._path[-1][0] + 1 == self._path[-1][1]:
            self._path.pop()
        self._depth, self.weight = 0, 1.0
        if not self._path:
            return False
        taken, count = self._path[-1]
        self._path[-1] = (taken + 1, count)
        return True


class EnumeratedNoise:
    """Noise that takes every outcome in turn, with the weight that the scores give it.

    A choice is made when its outcome is first read, so positions behind a rejected draft token, whose
    outcomes nobody reads, do not multiply the branches.
    """

    def __init__(self, branches: Branches) -> None:
        self._branches = branches

    def choose(self, scores: Tensor, position: int, purpose: int = Purpose.CHOICE) -> Sequence[int]:
        """One outcome per row of ``scores`` [n, vocab]; every call is a draw of its own."""
        return _LateChoices(self._branches, self.law(scores).tolist())

    def accept(self, probability: float, position: int) -> bool:
        """Both outcomes, where both are possible."""
        return self._branches.pick((max(0.0, 1.0 - probability), probability)) == 1

    def law(self, scores: Tensor) -> Tensor:
        """Softmax of each row."""
        return scores.to(torch.float64).softmax(dim=-1)


class _LateChoices(Sequence[int]):
    """Outcomes that are picked when they are read."""

    def __init__(self, branches: Branches, laws: Sequence[Sequence[float]]) -> None:
        self._branches = branches
        self._laws = laws
        self._picked: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._laws)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index not in self._picked:
            self._picked[index] = self._branches.pick(self._laws[index])
        return self._picked[index]


def enumerate_law(
    run: Callable[[EnumeratedNoise], tuple[int, ...]],
) -> dict[tuple[int, ...], float]:
    """The exact law of what ``run`` returns, over every branch of every choice it makes."""
    law: dict[tuple[int, ...], float] = {}
    branches = Branches()
    more = True
    while more:
        result = run(EnumeratedNoise(branches))
        law[result] = law.get(result, 0.0) + branches.weight
        more = branches.rewind()
    return law
