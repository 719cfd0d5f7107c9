"""A draft model beside its target: loaded alike, and refused where their tokens mean different things."""

from __future__ import annotations

from pathlib import Path

from decoders.loader import LoadedModel, load
from decoders.models.base import ModelError


def load_draft(
    spec: str,
    target: LoadedModel,
    *,
    dtype: str = "auto",
    device: str = "auto",
    num_layers: int | None = None,
    cache_dir: Path | None = None,
) -> LoadedModel:
    """Load a draft model for ``target``: with as many slots, each as long.

    Raises ModelError, also where the two models' token ids mean different things.
    """
    draft = load(
        spec,
        dtype=dtype,
        device=device,
        num_slots=target.model.num_slots,
        max_length=target.model.max_length,
        num_layers=num_layers,
        cache_dir=cache_dir,
    )
    if difference := target.tokenizer.difference(draft.tokenizer):
        raise ModelError(
            f"{draft.name} cannot draft for {target.name}, because {difference}; a draft model must "
            "have the target's own tokenizer, as smaller models of one family do"
        )
    return draft
