"""Which of several answers are given: the likeliest ones, known once all have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from decoders.stats import DecodeStats
from gateway.chunk import Chunk
from gateway.types import Usage


class Choosing(Protocol):
    """Decides which answers' chunks go out, and when."""

    def add(self, chunk: Chunk) -> Sequence[Chunk]:
        """What may go out once the answer ``chunk.index`` has this chunk too."""
        ...


class EveryAnswer:
    """All of them, at once."""

    def add(self, chunk: Chunk) -> Sequence[Chunk]:
        """The chunk itself."""
        return (chunk,)


class BestAnswers:
    """The ``n`` answers with the highest log-probability per token under the target, best first.

    That is the mean over the emitted tokens, an end-of-sequence token included, before any
    processor; of equals the first. ``stats`` are those of the answers, final when one has ended.
    """

    def __init__(self, n: int, stats: Sequence[DecodeStats]) -> None:
        self._n = n
        self._stats = stats
        self._held: list[list[Chunk]] = [[] for _ in stats]
        self._num_ended = 0

    def add(self, chunk: Chunk) -> Sequence[Chunk]:
        """Nothing, until the last answer has ended; then all chunks of the best."""
        self._held[chunk.index].append(chunk)
        self._num_ended += chunk.finish_reason is not None
        if self._num_ended < len(self._held):
            return ()
        ranked = sorted(range(len(self._held)), key=lambda answer: -_mean(self._stats[answer]))
        best = [
            msgspec.structs.replace(held, index=index)
            for index, answer in enumerate(ranked[: self._n])
            for held in self._held[answer]
        ]
        others = sum(self._stats[answer].num_output_tokens for answer in ranked[self._n :])
        return [_with_tokens(held, others) if held.index == 0 else held for held in best]


def _mean(stats: DecodeStats) -> float:
    return stats.logprob / stats.num_output_tokens if stats.num_output_tokens else 0.0


def _with_tokens(chunk: Chunk, count: int) -> Chunk:
    if chunk.usage is None:
        return chunk
    used = chunk.usage
    usage = Usage(used.prompt_tokens, used.completion_tokens + count, used.cached_tokens)
    return msgspec.structs.replace(chunk, usage=usage)
