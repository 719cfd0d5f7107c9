"""Answers that have ended, kept to draft from: one corpus a scope, none of which sees another.

A corpus is an index of n-grams and not a suffix automaton, because the oldest answer has to go when
there is no room, and an automaton cannot forget.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

_MAX_SCOPES = 256
_CANDIDATES = 16
"""Places of one n-gram that are looked at, the latest first."""
_LONGEST = 32
"""Tokens that a match is followed back; one as long is as good as a longer one."""

_NOWHERE: deque[tuple[int, int]] = deque()


@dataclass(frozen=True)
class Place:
    """Where an ended answer went on as the sequence might."""

    match_length: int
    continuation: tuple[int, ...]


class Corpus:
    """The latest answers of one scope, ``max_tokens`` of them together."""

    def __init__(self, max_tokens: int, order: int) -> None:
        self._max_tokens = max_tokens
        self._order = order
        self._answers: deque[tuple[int, ...]] = deque()
        self._first = 0
        """Number of the oldest answer; they are numbered as they come."""
        self._places: dict[tuple[int, ...], deque[tuple[int, int]]] = {}
        self.num_tokens = 0

    def add(self, answer: Sequence[int]) -> None:
        """Take in an answer, and give up the oldest until there is room; of a longer one its end."""
        kept = tuple(answer[-self._max_tokens :])
        if len(kept) <= self._order:
            return
        while self.num_tokens + len(kept) > self._max_tokens:
            self._give_up_oldest()
        number = self._first + len(self._answers)
        self._answers.append(kept)
        self.num_tokens += len(kept)
        # The last token has no continuation.
        for end in range(self._order, len(kept)):
            gram = kept[end - self._order : end]
            self._places.setdefault(gram, deque()).append((number, end))

    def find(self, token_ids: Sequence[int], max_tokens: int) -> Place | None:
        """The longest match of the sequence's end, the latest of equals, and what followed there."""
        gram = tuple(token_ids[-self._order :])
        best, found = 0, None
        for number, end in islice(reversed(self._places.get(gram, _NOWHERE)), _CANDIDATES):
            answer = self._answers[number - self._first]
            length = self._order + self._further(token_ids, answer, end)
            if length > best:
                best, found = length, answer[end : end + max_tokens]
        return None if found is None else Place(best, found)

    def _further(self, token_ids: Sequence[int], answer: tuple[int, ...], end: int) -> int:
        """By how many tokens before the n-gram the match is longer."""
        most = min(len(token_ids), end, _LONGEST) - self._order
        at, there = len(token_ids) - self._order - 1, end - self._order - 1
        return next(
            (i for i in range(most) if token_ids[at - i] != answer[there - i]), max(most, 0)
        )

    def _give_up_oldest(self) -> None:
        answer = self._answers.popleft()
        self._first += 1
        self.num_tokens -= len(answer)
        for end in range(self._order, len(answer)):
            gram = answer[end - self._order : end]
            # The oldest answer's places come first.
            places = self._places[gram]
            places.popleft()
            if not places:
                del self._places[gram]


@dataclass
class Corpora:
    """One corpus a scope; of too many scopes the one that was used longest ago is given up."""

    max_tokens: int
    """Of each scope."""
    order: int
    """Length of the n-grams, and of the shortest match."""
    _by_scope: OrderedDict[str, Corpus] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._by_scope)

    def add(self, scope: str, answer: Sequence[int]) -> None:
        """Take in an answer of ``scope``."""
        if scope not in self._by_scope:
            self._by_scope[scope] = Corpus(self.max_tokens, self.order)
        self._by_scope.move_to_end(scope)
        self._by_scope[scope].add(answer)
        if len(self._by_scope) > _MAX_SCOPES:
            self._by_scope.popitem(last=False)

    def find(self, scope: str, token_ids: Sequence[int], max_tokens: int) -> Place | None:
        """What followed in the answers of ``scope``, and of no other."""
        corpus = self._by_scope.get(scope)
        return None if corpus is None else corpus.find(token_ids, max_tokens)
