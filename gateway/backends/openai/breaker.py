"""`Breaker`: leaves a server alone that keeps failing, and tries it again with one request."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST = 60.0


class Breaker:
    """Closed: all may pass. Open: nobody. Half open, after a while: one, who settles it."""

    def __init__(
        self, failures: int, seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = failures
        self._first = self._seconds = seconds
        self._clock = clock
        self._failures = 0
        self._until = 0.0
        self._trying = False

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half_open``."""
        if self._failures < self._limit:
            return "closed"
        return "open" if self._clock() < self._until else "half_open"

    @property
    def passable(self) -> bool:
        """Whether a request may pass now."""
        state = self.state
        return state == "closed" or (state == "half_open" and not self._trying)

    def enter(self) -> None:
        """A request passes; it must come to `succeed`, `fail` or `leave`."""
        self._trying = self.state == "half_open"

    def leave(self) -> None:
        """It ended without showing anything of the server."""
        self._trying = False

    def succeed(self) -> None:
        """It was served."""
        self._trying = False
        self._failures, self._seconds = 0, self._first

    def fail(self) -> None:
        """It was not, and the server is to blame."""
        was_half_open, self._trying = self.state == "half_open", False
        self._failures += 1
        if self._failures < self._limit:
            return
        if was_half_open:
            self._seconds = min(self._seconds * 2, _LONGEST)
        self._until = self._clock() + self._seconds
