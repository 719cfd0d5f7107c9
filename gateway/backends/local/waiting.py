"""How the local backend's idle threads wait, settled before torch is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from decoders.waiting import SETTINGS, VARIABLES, choose_waiting, matters


def variables(
    options: Mapping[str, Any], environment: Mapping[str, str], notify: Callable[[], None]
) -> Mapping[str, str]:
    """What to set for the options ``waiting``, ``threads``, ``device``, ``model`` and ``cache``.

    Nothing where the environment says it already, or where it does not matter.
    """
    threads = options.get("threads")
    threads = threads if isinstance(threads, int) else None
    if any(name in environment for name in VARIABLES):
        return {}
    if not matters(str(options.get("device", "auto")), threads):
        return {}
    wanted = options.get("waiting", "auto")
    if wanted == "auto":
        cache = options.get("cache")
        wanted = choose_waiting(
            str(options.get("model", "demo")),
            threads=threads,
            environment=environment,
            cache_dir=Path(cache) if cache else None,
            notify=notify,
        ).value
    return SETTINGS.get(str(wanted), {})
