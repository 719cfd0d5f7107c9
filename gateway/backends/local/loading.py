"""Fetches and loads the model as the options of the local backend say."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from decoders import loader
from decoders.loader import LoadedModel, Progress
from decoders.models.base import ModelError
from decoders.tuning import FASTEST, load_fastest, tune_threads
from gateway.errors import ConfigError, Problem


def fetch(model: str, *, cache: Path | None = None, progress: Progress | None = None) -> str:
    """Make ``model`` ready to be loaded; returns the folder or hub id. Raises ConfigError."""
    try:
        return loader.fetch(model, cache_dir=cache, progress=progress)
    except ModelError as error:
        raise config_error(error) from error


def load(
    model: str,
    *,
    dtype: str,
    device: str,
    num_slots: int,
    max_length: int,
    threads: int | Literal["auto"],
    cache_dir: Path | None,
) -> tuple[LoadedModel, str]:
    """The model, and in words what runs: name, dtype, threads, and the times that they won by.

    Raises ModelError, or ValueError for a number of threads that cannot be.
    """
    if threads != "auto":
        if threads < 1:
            raise ValueError(f"threads is {threads}; give a number from 1 up, or auto")
        torch.set_num_threads(threads)
    runs = []
    if dtype == FASTEST:
        loaded, choice = load_fastest(
            model, device=device, num_slots=num_slots, max_length=max_length, cache_dir=cache_dir
        )
        runs.append(str(choice))
    else:
        loaded = loader.load(
            model,
            dtype=dtype,
            device=device,
            num_slots=num_slots,
            max_length=max_length,
            cache_dir=cache_dir,
        )
        runs.append(f"dtype {loaded.dtype}")
    if threads == "auto":
        runs.append(str(tune_threads(loaded, cache_dir=cache_dir)))
    else:
        runs.append(f"threads {threads}")
    return loaded, f"{loaded.name}: {'; '.join(runs)}"


def config_error(error: Exception) -> ConfigError:
    """What is wrong with the options, as the configuration's error."""
    return ConfigError([Problem(str(error), path="model")])
