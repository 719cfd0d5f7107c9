"""`Reviver`: starts an engine again whose thread has died, a few times and with growing pauses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger(__name__)

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.5
HEALTHY_SECONDS = 60.0
"""An engine that has run so long starts with all attempts again."""


class Revivable(Protocol):
    """What can be started again."""

    def start(self, died: Callable[[BaseException], None] | None = None) -> None:
        """Start; ``died`` is called when it ends by a fault."""
        ...

    def revive(self) -> None:
        """Start again after a fault."""
        ...


class Reviver:
    """Watches one engine from its start on."""

    def __init__(
        self,
        engine: Revivable,
        *,
        attempts: int = ATTEMPTS,
        pause_seconds: float = FIRST_PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._attempts = attempts
        self._pause = pause_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._failures = 0
        self._started_at = clock()
        self._closed = False
        engine.start(self._died)

    @property
    def detail(self) -> str:
        """What to tell of an engine that does not run."""
        if self._closed or not self._failures:
            return "the engine has stopped"
        if self._failures > self._attempts:
            return f"the engine has failed {self._failures} times and is given up: restart"
        return "the engine has failed and is being started again"

    def close(self) -> None:
        """Start nothing any more. To be called before the engine is stopped."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()

    def _died(self, error: BaseException) -> None:
        with self._lock:
            if self._clock() - self._started_at > HEALTHY_SECONDS:
                self._failures = 0
            self._failures += 1
            if self._closed:
                return
            if self._failures > self._attempts:
                _log.critical("the engine is given up after %d attempts", self._attempts)
                return
            pause = self._pause * 2.0 ** (self._failures - 1)
            self._timer = threading.Timer(pause, self._revive)
            self._timer.daemon = True
            self._timer.start()

    def _revive(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._started_at = self._clock()
        try:
            self._engine.revive()
        except Exception as error:  # noqa: BLE001 - tried again, or given up
            _log.exception("the engine could not be started again")
            self._died(error)
