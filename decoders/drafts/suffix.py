"""Drafts from text that is there: what followed the last time when the text ended like this.

That is the sequence itself and, if it is wished for, the answers of the same scope that have ended.

No model runs. The index is a suffix automaton over prompt and output (Blumer et al., "The smallest
automaton recognizing the subwords of a text", 1985): constant amortised time per token, and the
longest earlier match is one link away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoders.draft import NO_DRAFT, Draft
from decoders.drafts.base import DraftRequest
from decoders.drafts.corpus import Corpora


class SuffixAutomaton:
    """All substrings of a growing token sequence."""

    def __init__(self) -> None:
        # Per state: transitions, suffix link, length of its longest string, and where the latest
        # known occurrence of it ends.
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [-1]
        self._last = 0
        self.num_tokens = 0

    def append(self, token_id: int) -> None:
        """Add one token at the end."""
        current = self._state(self._length[self._last] + 1, {}, self.num_tokens)
        state = self._last
        while state != -1 and token_id not in self._next[state]:
            self._next[state][token_id] = current
            state = self._link[state]
        if state == -1:
            self._link[current] = 0
        else:
            self._link[current] = self._target(state, token_id)
        self._last = current
        self.num_tokens += 1

    def match(self) -> tuple[int, int]:
        """(length, end) of the longest end of the sequence that also stands earlier in it.

        ``end`` is the position of its last token there; length 0 when there is none. The matched
        place is then moved to the present, so that the next match finds the latest use.
        """
        state = self._link[self._last] if self._last else 0
        if state <= 0:
            return 0, -1
        end = self._end[state]
        self._end[state] = self.num_tokens - 1
        return self._length[state], end

    def _target(self, state: int, token_id: int) -> int:
        """The state of the string that ends in ``token_id``, split off its longer neighbours if need be."""
        target = self._next[state][token_id]
        if self._length[state] + 1 == self._length[target]:
            return target
        clone = self._state(self._length[state] + 1, dict(self._next[target]), self._end[target])
        self._link[clone] = self._link[target]
        self._link[target] = clone
        while state != -1 and self._next[state].get(token_id) == target:
            self._next[state][token_id] = clone
            state = self._link[state]
        return clone

    def _state(self, length: int, transitions: dict[int, int], end: int) -> int:
        self._next.append(transitions)
        self._link.append(-1)
        self._length.append(length)
        self._end.append(end)
        return len(self._length) - 1


@dataclass
class _Row:
    """What is kept of one sequence while it runs."""

    token_ids: Sequence[int]
    num_prompt_tokens: int
    scope: str | None
    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)


class SuffixDraftSource:
    """Proposes the continuation of the longest earlier match, longer drafts for longer matches."""

    name = "suffix"

    def __init__(
        self, *, min_match: int = 1, tokens_per_match: float = 2.0, corpus_tokens: int = 0
    ) -> None:
        """``corpus_tokens`` of each scope's latest answers are kept to draft from; 0: none.

        A token takes about 300 bytes there.
        """
        if min_match < 1:
            raise ValueError(f"min_match must be at least 1, not {min_match}")
        if tokens_per_match <= 0:
            raise ValueError(f"tokens_per_match must be above 0, not {tokens_per_match}")
        if corpus_tokens < 0:
            raise ValueError(f"corpus_tokens must be at least 0, not {corpus_tokens}")
        self._min_match = min_match
        self._tokens_per_match = tokens_per_match
        self._rows: dict[int, _Row] = {}
        self._corpora = Corpora(corpus_tokens, min_match) if corpus_tokens else None

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request."""
        return [self._propose(request) for request in requests]

    def forget(self, sequence_id: int) -> None:
        """Drop the index of a sequence; its answer, as far as it came, joins its scope's corpus."""
        row = self._rows.pop(sequence_id, None)
        if self._corpora is not None and row is not None and row.scope is not None:
            self._corpora.add(row.scope, row.token_ids[row.num_prompt_tokens :])

    def _propose(self, request: DraftRequest) -> Draft:
        token_ids = request.token_ids
        row = self._rows.get(request.sequence_id)
        if row is None:
            row = _Row(token_ids, len(token_ids) - request.position, request.scope)
            self._rows[request.sequence_id] = row
        automaton = row.automaton
        for at in range(automaton.num_tokens, len(token_ids)):
            automaton.append(token_ids[at])
        length, end = automaton.match()
        if self._corpora is not None and request.scope is not None:
            place = self._corpora.find(request.scope, token_ids, request.max_tokens)
            # Of equals the sequence itself: it is what the answer is about.
            if place is not None and place.match_length > length:
                count = self._count(request, place.match_length)
                return self._found(place.continuation[:count], place.match_length)
        if length < self._min_match:
            return NO_DRAFT
        period = len(token_ids) - 1 - end
        # A match that reaches into its own continuation repeats with this period.
        count = self._count(request, length)
        proposed = tuple(token_ids[end + 1 + i % period] for i in range(count))
        return self._found(proposed, length)

    def _found(self, token_ids: tuple[int, ...], match_length: int) -> Draft:
        return Draft(token_ids, self.name, match_length=match_length, from_context=True)

    def _count(self, request: DraftRequest, match_length: int) -> int:
        return min(request.max_tokens, int(match_length * self._tokens_per_match))
