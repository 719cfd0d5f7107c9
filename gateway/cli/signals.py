"""The signals of a request as the gateway would measure them, for commands that send none.

It takes the classifiers from the configuration; what is decided on their signals is not its matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gateway import extensions
from gateway.classification.base import Classifier, classify
from gateway.types import ChatRequest, Signals

TIMEOUT_SECONDS = 60.0
"""Long: here a classifier reads its data at the first request, which a gateway does at its start."""


class SignalReader:
    """The named classifiers as one function, built at the first request."""

    def __init__(
        self, names: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """``options``: keyword arguments by classifier, where there are any."""
        self._names = names
        self._options = options or {}
        self._built: Mapping[str, Classifier] | None = None

    def __call__(self, request: ChatRequest) -> Signals:
        """Measure. Raises ConfigError when a classifier cannot be built."""
        if self._built is None:
            self._built = {
                name: extensions.build("classifiers", name, self._options.get(name, {}))
                for name in self._names
            }
        return asyncio.run(classify(request, self._built, timeout_seconds=TIMEOUT_SECONDS))
