"""Which answers are degenerate loops. A text that repeats itself makes any speculation look good."""

from __future__ import annotations

from collections.abc import Sequence

MAX_PERIOD = 32
MIN_REPEATS = 3
MIN_TOKENS = 24


def is_loop(token_ids: Sequence[int]) -> bool:
    """Whether a piece of at most 32 tokens stands there at least three times in a row.

    The repetition must be at least 24 tokens long, and reach the end of the answer or cover half of
    it; where the last repeat is cut off, its beginning counts. So a short row of dots, a table's
    rule or a list whose items begin alike is no loop, and neither is one that the model left again.
    """
    return any(_loops_with(token_ids, period) for period in range(1, MAX_PERIOD + 1))


def _loops_with(token_ids: Sequence[int], period: int) -> bool:
    needed = max(MIN_TOKENS, MIN_REPEATS * period)
    same = 0
    for i in range(period, len(token_ids)):
        same = same + 1 if token_ids[i] == token_ids[i - period] else 0
        length = same + period
        at_end = i == len(token_ids) - 1
        if same and length >= needed and (at_end or 2 * length >= len(token_ids)):
            return True
    return False
