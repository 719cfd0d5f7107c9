"""What was measured on this machine, kept on disk: one file for each key.

Knows nothing of what is measured. A measurement that was disturbed is used and not kept, so that a
machine that was busy once is measured again at the next start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_low
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)
_VERSION = 4
DEFAULT_CACHE = Path("~/.cache/draftgate")
MAX_SPREAD = 0.25
"""How far a usual round may lie above the best one, as a share of it."""
T = TypeVar("T")


def spread(samples: Iterable[Sequence[float]]) -> float:
    """By what share the (lower) median of a point's rounds exceeds their least; of all points, the median.

    What disturbs a measurement makes single rounds slower. 0.0 where every point has one round.
    """
    shares = [
        median_low(rounds) / min(rounds) - 1.0 for rounds in samples if rounds and min(rounds) > 0
    ]
    return median(shares) if shares else 0.0


@dataclass(frozen=True)
class Form(Generic[T]):
    """How one kind of measurement is kept."""

    kind: str
    """Part of the key."""
    write: Callable[[T], object]
    """The value as a JSON document."""
    read: Callable[[object], T]
    """The value of a document. Raises ValueError, KeyError or TypeError for a wrong one."""
    spread: Callable[[T], float]
    """How much the measurement was disturbed, as `spread` says."""


class MeasurementStore:
    """Measurements in a folder; a key names all that they depend on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load_or_measure(self, form: Form[T], key: Mapping[str, str], take: Callable[[], T]) -> T:
        """The value kept for ``key``, else a new one.

        A file that is missing, broken or another key's is written again; a folder that cannot be
        written costs only the next start its time.
        """
        key = {"kind": form.kind, **key}
        path = self._folder / f"{_digest(key)}.json"
        with suppress(OSError, ValueError, KeyError, TypeError):
            return form.read(_checked(json.loads(path.read_text()), key))
        value = take()
        disturbed = form.spread(value)
        if disturbed > MAX_SPREAD:
            _log.warning(
                "the %s was measured on a busy machine (rounds differ by %.0f %%) and is not kept; "
                "the next start measures again",
                form.kind,
                100 * disturbed,
            )
            return value
        with suppress(OSError):
            self._save(path, {"version": _VERSION, "key": key, "value": form.write(value)})
        return value

    def _save(self, path: Path, document: Mapping[str, object]) -> None:
        """Write beside and rename: two engines that start at once both leave a whole file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
        try:
            with os.fdopen(handle, "w") as stream:
                json.dump(document, stream)
            os.replace(name, path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def measurement_store(cache_dir: Path | None = None) -> MeasurementStore:
    """Where what was measured on this machine is kept."""
    return MeasurementStore((cache_dir or DEFAULT_CACHE).expanduser() / "profiles")


def machine() -> str:
    """What this machine computes with, as far as it can be told without a library."""
    names = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.machine()} {names[0] if names else platform.processor()} x{num_cpus()}"


def num_cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _checked(document: dict[str, object], key: Mapping[str, str]) -> object:
    if document["version"] != _VERSION or document["key"] != dict(key):
        raise ValueError("another version or another key")
    return document["value"]


def _digest(key: Mapping[str, str]) -> str:
    text = json.dumps([_VERSION, sorted(key.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
