"""Times a loaded model for the cost model, once for each machine and model.

Runs what the engine runs, before the engine does; it must not be called while an engine uses the model.
"""

from __future__ import annotations

from pathlib import Path

import torch

from decoders.loader import LoadedModel
from decoders.measurements import machine, measurement_store
from decoders.models.base import LanguageModel, Row
from decoders.noise import GumbelNoise
from decoders.profile import PROFILE, Profile, measure

_CONTEXT = 64
"""Tokens before those that are timed."""
_MORE_CONTEXT = 1024
"""Tokens before those as well, where it is timed what they cost."""


def load_profile(loaded: LoadedModel, *, cache_dir: Path | None = None) -> Profile:
    """The profile of ``loaded`` from the cache, or measured now: at most about three seconds."""
    model = loaded.model
    key = {
        "machine": machine(),
        "device": _device_name(model),
        "model": loaded.fingerprint,
        "threads": str(torch.get_num_threads()),
        "num_slots": str(model.num_slots),
        "max_length": str(model.max_length),
    }
    return measurement_store(cache_dir).load_or_measure(PROFILE, key, lambda: measure_model(model))


def measure_model(model: LanguageModel, *, budget_seconds: float = 2.5) -> Profile:
    """Time forward passes of ``model`` over its own slots, and the choice of a token from them."""

    def forward(num_rows: int, num_tokens: int) -> None:
        width = num_tokens // num_rows
        start = min(_CONTEXT, model.max_length - width)
        token_ids = tuple(i % model.vocab_size for i in range(width))
        logits = model.forward([Row(slot, start, token_ids, width) for slot in range(num_rows)])
        logits.argmax(dim=-1).tolist()  # waits for the device

    def attend(width: int) -> None:
        row = Row(0, _CONTEXT + _MORE_CONTEXT, (0,) * width, width)
        model.forward([row]).argmax(dim=-1).tolist()

    def choose(count: int) -> None:
        noise.choose(scores.expand(count, -1), 0)

    scores = model.forward([Row(0, 0, (0,), 1)])
    noise = GumbelNoise(0)
    return measure(
        forward,
        max_rows=model.num_slots,
        max_tokens_per_row=model.max_length,
        choose=choose,
        attend=attend if model.max_length >= 2 * _MORE_CONTEXT else None,
        num_attended=_MORE_CONTEXT,
        budget_seconds=budget_seconds,
    )


def _device_name(model: LanguageModel) -> str:
    device = model.forward([Row(0, 0, (0,), 1)]).device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
