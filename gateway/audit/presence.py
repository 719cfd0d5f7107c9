"""Which writers of a decision log are alive: each has a lock on a file beside the database.

The kernel drops such a lock when its process ends, however it ends, so there are no heartbeats to
miss and no process ids to be used again. Works across containers that share the directory, as
SQLite does. Knows nothing of the database itself.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_GATE = "gate"
_POLL_SECONDS = 0.02


class Presence:
    """The lock that says that this writer is alive."""

    def __init__(self, directory: Path, writer: str) -> None:
        """Take the lock; the caller has passed the `gate`."""
        self._path = directory / writer
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Be gone. Call it once."""
        # In this order nobody can meet the file of a living writer unlocked.
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def directory(database: Path) -> Path:
    """Where the locks of ``database`` are; made when it is missing."""
    path = database.with_name(f"{database.name}.writers")
    path.mkdir(exist_ok=True)
    return path


@contextmanager
def gate(directory: Path, timeout_seconds: float) -> Iterator[None]:
    """Let one process at a time open the log. Raises TimeoutError."""
    file = os.open(directory / _GATE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + timeout_seconds
        while not _lock(file):
            if time.monotonic() > deadline:
                raise TimeoutError("another process has been opening it for too long")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(file)


def living(directory: Path) -> frozenset[str]:
    """The writers alive now; files of dead ones are removed. The caller has passed the `gate`."""
    return frozenset(
        path.name for path in directory.iterdir() if path.name != _GATE and _is_alive(path)
    )


def _is_alive(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError:
        # Another user's gateway: closing its requests by mistake is worse than leaving them open.
        return True
    try:
        if not _lock(file):
            return True
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(file)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
