"""Chooses how idle threads of the pool wait for work: spinning, or asleep.

A thread that spins is there at once when the next operation comes, and meanwhile takes a processor
from the event loop and from every other process. GNU's OpenMP reads which it is when torch is
imported, so this module must not import torch: it asks processes of its own, one for each setting.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Timer
from typing import IO

from decoders.choice import CHOICE, Choice, Step, choose
from decoders.measurements import machine, measurement_store, num_cpus

_log = logging.getLogger(__name__)
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""The environment's variables that say how threads wait."""
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "spin": {},
}
"""What to set for each way to wait. In doubt the first, which takes nothing from anybody; OpenMP's
own way is to spin for some milliseconds."""
_ROWS = 8
_MAX_WIDTH = 1024
_MAX_INNER = 4096
_GIVE_UP_SECONDS = 15.0
_ACCELERATORS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


@dataclass(frozen=True)
class Shape:
    """The linear layers of a model, as far as it matters how long an operation takes."""

    width: int = 576
    inner: int = 1536
    """Of the feed-forward part."""
    layers: int = 30
    """The defaults are the demo model's: in small models waiting matters most."""


class ProbeFailed(RuntimeError):
    """A process that should have computed did not answer."""


Probe = Callable[[Shape, int | None, Mapping[str, str], ExitStack], Step]
"""Starts a process with these variables set, which ends with the stack, and gives its decode step."""


def choose_waiting(
    model: str,
    *,
    threads: int | None,
    environment: Mapping[str, str],
    cache_dir: Path | None = None,
    notify: Callable[[], None] = lambda: None,
    probe: Probe | None = None,
) -> Choice:
    """The way to wait with which ``model`` decodes fastest here; ``passive`` if in doubt.

    ``threads``: None for torch's own number. ``notify`` is called before it is measured, which
    takes some seconds, once for each machine and shape. Where no process answers it is ``spin``,
    which is to leave things as they are.
    """
    shape = shape_of(model)
    key = {
        "choice": "waiting",
        "machine": machine(),
        "torch": version("torch"),
        "shape": str(shape),
        "threads": str(threads),
    }

    def take() -> Choice:
        notify()
        start = probe or _process
        with ExitStack() as processes:
            steps = {
                name: start(shape, threads, {**environment, **setting}, processes)
                for name, setting in SETTINGS.items()
            }
            return choose("waiting", steps, _ROWS)

    try:
        return measurement_store(cache_dir).load_or_measure(CHOICE, key, take)
    except ProbeFailed as error:
        _log.warning("how threads wait best could not be measured: %s", error)
        return Choice("waiting", "spin", {})


def matters(device: str, threads: int | None) -> bool:
    """Whether a pool of GNU's OpenMP will compute: on a CPU, with Linux, and with several threads."""
    if sys.platform != "linux" or min(num_cpus(), threads or num_cpus()) < 2:
        return False
    if device == "auto":
        return version("torch").endswith("+cpu") or not any(p.exists() for p in _ACCELERATORS)
    return device.partition(":")[0] == "cpu"


def shape_of(model: str) -> Shape:
    """The shape in a model folder's ``config.json``, cut to a width that is quickly timed.

    The default's for all other models.
    """
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text())
        width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
        layers = int(config["num_hidden_layers"])
    except (OSError, ValueError, KeyError, TypeError):
        return Shape()
    if min(width, inner, layers) < 1:
        return Shape()
    return Shape(min(width, _MAX_WIDTH), min(inner, _MAX_INNER), min(layers, Shape.layers))


def _process(
    shape: Shape, threads: int | None, environment: Mapping[str, str], processes: ExitStack
) -> Step:
    """The step of a process of its own: `decoders.models.stack`."""
    numbers = (shape.width, shape.inner, shape.layers, threads or 0)
    ask = processes.enter_context(
        _asked(
            [sys.executable, "-m", "decoders.models.stack", *(str(n) for n in numbers)],
            environment,
        )
    )

    def step(rows: int) -> None:
        if ask(f"{rows}\n") != f"{rows}\n":
            raise ProbeFailed("a process that computes ended, or took too long")

    return step


@contextmanager
def _asked(command: list[str], environment: Mapping[str, str]) -> Iterator[Callable[[str], str]]:
    """A function that sends one line to the process and gives its answer; empty once it has ended."""
    with subprocess.Popen(  # noqa: S603 - the command is ours, no input of a user's is in it
        command,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        timer = Timer(_GIVE_UP_SECONDS, process.kill)
        timer.daemon = True
        timer.start()

        def ask(line: str) -> str:
            return _exchange(process.stdin, process.stdout, line)

        try:
            yield ask
        finally:
            timer.cancel()
            process.kill()


def _exchange(to: IO[str] | None, back: IO[str] | None, line: str) -> str:
    if to is None or back is None:
        raise ValueError("both are pipes")
    try:
        to.write(line)
        to.flush()
    except OSError:
        return ""
    return back.readline()
