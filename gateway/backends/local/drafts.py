"""The draft sources of one engine: found by name, made once, and handed the draft model they ask for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decoders.calibration import load_profile
from decoders.drafts.base import DraftSource
from decoders.loader import LoadedModel
from decoders.pairing import load_draft
from gateway import extensions
from gateway.errors import ConfigError, Problem


class DraftSources:
    """Makes sources by their entry points. One that takes a ``draft_model`` needs the backend to have one."""

    def __init__(
        self, options: Mapping[str, Mapping[str, Any]], given: Mapping[str, object]
    ) -> None:
        """``options`` are the operator's, by source; ``given`` what a source may ask for.

        Raises ConfigError for options that are wrong.
        """
        self._options = options
        self._given = given
        self._made: dict[str, DraftSource] = {}
        for name in options:
            self.get(name)

    def get(self, name: str) -> DraftSource:
        """The source called ``name``. Raises ConfigError where it lacks a draft model."""
        if name not in self._made:
            factory = extensions.load("draft_sources", name)
            takes = inspect.signature(factory).parameters
            if "draft_model" in takes and "draft_model" not in self._given:
                message = f"the draft source {name!r} needs a draft model, and there is none"
                hint = (
                    "give the local backend the option `draft_model`, or `draft_layers` to draft "
                    "with the first layers of its own model"
                )
                raise ConfigError([Problem(message, path="draft.source", hint=hint)])
            self._made[name] = extensions.build(
                "draft_sources",
                name,
                self._options.get(name, {}),
                **{key: value for key, value in self._given.items() if key in takes},
            )
        return self._made[name]


def draft_sources(
    options: Mapping[str, Mapping[str, Any]],
    target: LoadedModel,
    spec: str | None,
    num_layers: int | None,
    *,
    device: str,
    cache: Path | None,
    timed: bool,
) -> DraftSources:
    """The sources beside ``target``, with the draft model ``spec`` where there is one.

    ``timed`` measures it for the cost model. Raises ConfigError for wrong options, and ModelError for
    a model that cannot be loaded, or has another vocabulary than ``target``.
    """
    if spec is None:
        return DraftSources(options, {})
    loaded = load_draft(
        spec, target, dtype=target.dtype, device=device, num_layers=num_layers, cache_dir=cache
    )
    given: dict[str, object] = {"draft_model": loaded.model}
    if timed:
        given["draft_profile"] = load_profile(loaded, cache_dir=cache)
    return DraftSources(options, given)
