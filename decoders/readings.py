"""What a probe makes of prompts: kept token by token beside the cache, told when a prompt is in.

A probe is somebody else's code and never needed for an answer: where it fails, the row is told that
there is no reading, and decodes on. Called from the engine's thread only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from decoders.models.base import LanguageModel, PrefixCopier, Watchable
from decoders.probe import PrefillProbe
from decoders.request import Ticket

_log = logging.getLogger(__name__)


class Readings(Protocol):
    """Tells rows what there is to be read in their prompts."""

    @property
    def copier(self) -> PrefixCopier | None:
        """What copies the start of a slot, and all that is kept of it."""
        ...

    def tell(self, tickets: Iterable[Ticket]) -> None:
        """Tell those that wait for it and whose prompt is in the cache now."""
        ...


class NoReadings:
    """Those of an engine without a probe."""

    def __init__(self, model: LanguageModel) -> None:
        self.copier = model if isinstance(model, PrefixCopier) else None

    def tell(self, tickets: Iterable[Ticket]) -> None:
        """Nobody waits."""


class PromptReadings:
    """The projections of every token in the cache, written as the model computes it."""

    def __init__(self, probe: PrefillProbe, model: LanguageModel) -> None:
        """Raises ModelError for a model that shows no hidden states, or lacks one of the layers."""
        self.layers = tuple(probe.layers)
        self._probe = probe
        self._max_length = model.max_length
        self._num_places = model.num_slots * model.max_length
        self._kept: Tensor | None = None
        """[num_slots × max_length, width]; a token without a projection has no numbers."""
        if not isinstance(model, Watchable):
            raise TypeError(f"{type(model).__name__} shows no hidden states to a probe")
        model.watch(self)
        self.copier = _BothCopier(model, self) if isinstance(model, PrefixCopier) else None

    @torch.inference_mode()
    def see(self, places: Tensor, hidden: Sequence[Tensor]) -> None:
        """Keep what the probe makes of tokens at ``places`` [n]; see `Watcher`."""
        try:
            projections = self._probe.project(hidden).float()
            if self._kept is None:
                width = projections.shape[1]
                self._kept = projections.new_full((self._num_places, width), torch.nan)
            self._kept.index_copy_(0, places, projections)
        except Exception:  # noqa: BLE001 - logged: the other rows of the pass must go on
            _log.exception("a probe failed; the prompts of this pass have no reading")
            if self._kept is not None:
                self._kept.index_fill_(0, places, torch.nan)

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy what is kept of the first ``length`` tokens of one slot to another."""
        if self._kept is not None:
            self._slot(self._kept, target)[:length] = self._slot(self._kept, source)[:length]

    def tell(self, tickets: Iterable[Ticket]) -> None:
        """Tell those that wait for it and whose prompt is in the cache now."""
        for ticket in tickets:
            if ticket.unread and ticket.num_cached >= ticket.sequence.num_prompt_tokens:
                ticket.hear(self._reading(ticket))

    @torch.inference_mode()
    def _reading(self, ticket: Ticket) -> Sequence[float] | None:
        """What the probe reads; None where it fails, or says what is no number."""
        if self._kept is None:
            return None
        length = ticket.sequence.num_prompt_tokens
        projections = self._slot(self._kept, ticket.slot)[:length]
        try:
            reading = self._probe.read(projections, ticket.sequence.token_ids[:length])
            if all(map(math.isfinite, reading)):
                return reading
            _log.error("a probe read what is no number")
        except Exception:  # noqa: BLE001 - logged: the row is told that there is no reading
            _log.exception("a probe failed to read a prompt")
        return None

    def _slot(self, kept: Tensor, slot: int) -> Tensor:
        return kept[slot * self._max_length : (slot + 1) * self._max_length]


class _BothCopier:
    """Copies keys and values, and what a probe made of their tokens."""

    def __init__(self, model: PrefixCopier, readings: PromptReadings) -> None:
        self._model = model
        self._readings = readings

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Both, or the failure of either."""
        self._model.copy_prefix(source, target, length)
        self._readings.copy(source, target, length)
