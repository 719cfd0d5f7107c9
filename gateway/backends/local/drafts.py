"""The draft sources of one engine: found by name, made once, and handed the draft model they ask for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

from decoders.calibration import load_profile
from decoders.drafts.base import DraftSource
from decoders.loader import LoadedModel, load_draft
from gateway import extensions
from gateway.errors import ConfigError, Problem


class DraftSources:
    """Makes sources by their entry points. One that takes a ``draft_model`` needs the backend to have one."""

    def __init__(self, given: Mapping[str, object] | None = None) -> None:
        """``given`` is what a source may take by keyword: nothing, or `draft_options`."""
        self._given = given or {}
        self._made: dict[str, DraftSource] = {}

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
            self._made[name] = factory(
                **{key: value for key, value in self._given.items() if key in takes}
            )
        return self._made[name]


def draft_options(
    spec: str,
    num_layers: int | None,
    target: LoadedModel,
    *,
    dtype: str,
    device: str,
    cache: Path | None,
    timed: bool,
) -> Mapping[str, object]:
    """What sources may take: ``draft_model``, and where its time matters ``draft_profile``.

    Raises ModelError for a model that cannot be loaded, or has another vocabulary than ``target``.
    """
    loaded = load_draft(
        spec, target, dtype=dtype, device=device, num_layers=num_layers, cache_dir=cache
    )
    given: dict[str, object] = {"draft_model": loaded.model}
    if timed:
        given["draft_profile"] = load_profile(loaded, cache_dir=cache)
    return given
