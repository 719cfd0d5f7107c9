"""An engine that dies is started again, and given up when that does not help."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gateway.backends.local.revival import HEALTHY_SECONDS, Reviver


class Engine:
    """Something that can die and be revived."""

    def __init__(self, failing: int = 0) -> None:
        self.revived = threading.Semaphore(0)
        self.num_revivals = 0
        self._failing = failing

    def start(self, died: Callable[[BaseException], None] | None = None) -> None:
        assert died is not None
        self.died = died

    def revive(self) -> None:
        self.num_revivals += 1
        self.revived.release()
        if self.num_revivals <= self._failing:
            raise RuntimeError("not yet")


def test_a_dead_engine_is_revived_until_it_lives() -> None:
    engine = Engine(failing=2)
    reviver = Reviver(engine, pause_seconds=0.001)
    assert "stopped" in reviver.detail

    engine.died(MemoryError())

    assert all(engine.revived.acquire(timeout=10) for _ in range(3))
    assert "started again" in reviver.detail
    reviver.close()


def test_after_its_attempts_it_is_given_up() -> None:
    engine = Engine(failing=99)
    reviver = Reviver(engine, attempts=3, pause_seconds=0.001)

    engine.died(MemoryError())

    assert all(engine.revived.acquire(timeout=10) for _ in range(3))
    deadline = time.monotonic() + 10
    while "given up" not in reviver.detail:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert engine.num_revivals == 3


def test_one_that_was_healthy_for_long_has_all_its_attempts_again() -> None:
    now = [0.0]
    engine = Engine()
    reviver = Reviver(engine, attempts=1, pause_seconds=0.001, clock=lambda: now[0])
    for _ in range(5):
        now[0] += HEALTHY_SECONDS + 1
        engine.died(MemoryError())
        assert engine.revived.acquire(timeout=10)

    assert "given up" not in reviver.detail
    engine.died(MemoryError())
    assert "given up" in reviver.detail


def test_nothing_is_started_after_the_end() -> None:
    engine = Engine()
    reviver = Reviver(engine, pause_seconds=0.001)
    reviver.close()

    engine.died(MemoryError())

    assert not engine.revived.acquire(timeout=0.05)
