"""The gateway's own log: one line an event on standard output, whatever its host logs and how.

Built from its section of the configuration and handed to whoever writes; structlog's process-wide
settings belong to the host. Knows nothing of what is logged.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from gateway.errors import ConfigError, Problem

LEVELS = ("debug", "info", "warning", "error", "critical")

_NOISY = ("uvicorn", "uvicorn.error", "uvicorn.access", "httpx", "httpcore", "alembic")

Log = FilteringBoundLogger
"""What is handed to whoever writes: a method a level, taking an event and its fields."""


def build_log(level: str = "info", *, json: bool = True) -> Log:
    """A log from ``level`` up: JSON lines, or text for people. Raises ConfigError.

    Neither shows the variables of a traceback, for they hold prompts.
    """
    if level.lower() not in LEVELS:
        problem = Problem(
            f"unknown log level {level!r}", path="log.level", hint=f"one of {', '.join(LEVELS)}"
        )
        raise ConfigError([problem])
    # All is given here and bound at once: what is left out would come from the process's settings.
    log: Log = structlog.wrap_logger(
        _StandardOutput(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(_json_renderers() if json else _text_renderers()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level.lower()),
        context_class=dict,
        cache_logger_on_first_use=False,
    ).bind()
    return log


def quieten_libraries() -> None:
    """Let the libraries below us speak from warnings up; for a process that is ours alone."""
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


class _StandardOutput:
    """Writes lines to ``sys.stdout`` as it is at the time.

    An output that is closed, or whose reader is gone, is no reason for a request to fail.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def info(self, line: str) -> None:
        """Write one line."""
        try:
            with self._lock:
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
        except (OSError, ValueError):
            return

    debug = warning = error = critical = info


def _json_renderers() -> Sequence[Processor]:
    # ASCII: no character that any reader takes for the end of a line or a terminal command leaves
    # the string.
    return (
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(ensure_ascii=True),
    )


def _text_renderers() -> Sequence[Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stdout.isatty(),
        # repr() keeps line ends and terminal commands inside their quotes.
        repr_native_str=True,
        exception_formatter=structlog.dev.plain_traceback,
    )
    return (renderer,)
