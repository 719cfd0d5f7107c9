"""What drawing a draft costs before there is one: passes of a draft model, timed like the target's."""

from __future__ import annotations

from dataclasses import dataclass

from decoders.profile import Profile

FREE = Profile({(1, 1): 0.0})
"""Of a draft model that takes no time, or whose time nobody asks for."""


@dataclass(frozen=True)
class Price:
    """What a source must compute for one row's next draft."""

    profile: Profile
    """Of one pass of its model; each draft token takes one."""
    num_behind: int = 1
    """Tokens of the sequence that its model has not read yet; at least the last one."""
    chunk_tokens: int = 1
    """How many tokens its model reads in one step at most, for all of its rows together."""

    def reading_seconds(self, num_tokens: int) -> float:
        """To read so many tokens, beyond the one that every pass brings."""
        if num_tokens < 1:
            return 0.0
        return self.profile.forward_seconds(1, num_tokens) - self.profile.forward_seconds(1, 1)

    def draw_seconds(self, *, samples: bool) -> float:
        """To draw one token alone."""
        return self.profile.forward_seconds(1, 1) + (
            self.profile.sampling_seconds if samples else 0.0
        )


class Reading:
    """What a draft model reads in one step, given to its rows in turn.

    Those that lack least come first. A row draws nothing until its model has read all of it.
    """

    def __init__(self, chunk_tokens: int) -> None:
        self._left = chunk_tokens

    def take(self, num_unread: int) -> int:
        """How many tokens of the next row, which lacks ``num_unread``, are read now."""
        # One token is what any step costs; a row that needs no more is never made to wait.
        count = min(num_unread, self._left) or int(num_unread == 1)
        self._left = max(self._left - count, 0)
        return count


class Passes:
    """The passes of one draft model in one step: the n-th draws the n-th token of every draft."""

    def __init__(self) -> None:
        self._num_rows: list[int] = []
        self._seconds = 0.0
        self._num_tokens = 0

    def join(self, price: Price, number: int, *, samples: bool) -> float:
        """Seconds that one more row adds by taking part in pass ``number`` (from 0)."""
        self._num_rows += [0] * (number + 1 - len(self._num_rows))
        rows = self._num_rows[number]
        before = price.profile.forward_seconds(rows, rows) if rows else 0.0
        added = price.profile.forward_seconds(rows + 1, rows + 1) - before
        if samples:
            added += price.profile.sampling_seconds
        self._num_rows[number] += 1
        self._num_tokens += 1
        self._seconds += added
        return added

    def token_seconds(self, price: Price, *, samples: bool) -> float:
        """Seconds of one draft token, on the average of those that joined; alone where none did."""
        if not self._num_tokens:
            return price.draw_seconds(samples=samples)
        return self._seconds / self._num_tokens
