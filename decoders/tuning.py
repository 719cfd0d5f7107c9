"""Chooses dtype and threads by what is fastest here, once for each machine and model.

Runs what the engine runs, before the engine does.
"""

from __future__ import annotations

from pathlib import Path

import torch

from decoders.choice import CHOICE, Choice, Step, choose
from decoders.loader import BFLOAT16_WEIGHTS, LoadedModel, Progress, fetch, fingerprint, load
from decoders.measurements import machine, measurement_store, num_cpus
from decoders.models.base import LanguageModel, Row

FASTEST = "fastest"
"""A dtype that is chosen by measuring."""
_CONTEXT = 64
"""Tokens before those that are timed."""


def tune_threads(loaded: LoadedModel, *, cache_dir: Path | None = None) -> Choice:
    """Set the number of threads that computes ``loaded`` fastest; torch's own choice if in doubt.

    Must not be called while an engine uses the model.
    """
    candidates = thread_counts(torch.get_num_threads(), num_cpus())
    if len(candidates) == 1 or not _on_cpu(loaded.model):
        return Choice("threads", str(candidates[0]), {})

    def step(threads: int) -> Step:
        def run(rows: int) -> None:
            torch.set_num_threads(threads)
            _decode(loaded.model, rows)

        return run

    key = {
        "machine": machine(),
        "model": loaded.fingerprint,
        "num_slots": str(loaded.model.num_slots),
        "candidates": str(candidates),
    }
    choice = measurement_store(cache_dir).load_or_measure(
        CHOICE,
        {"choice": "threads", **key},
        lambda: choose("threads", {str(n): step(n) for n in candidates}, loaded.model.num_slots),
    )
    torch.set_num_threads(int(choice.value))
    return choice


def thread_counts(default: int, cpus: int) -> list[int]:
    """The numbers to try, torch's own first; it alone where there is next to nothing to choose from."""
    if cpus <= 2:
        return [default]
    return [default, *sorted({1, cpus // 4 or 1, cpus // 2, cpus} - {default})]


def load_fastest(
    spec: str,
    *,
    device: str = "auto",
    num_slots: int = 8,
    max_length: int = 4096,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> tuple[LoadedModel, Choice]:
    """`load` with the dtype that decodes fastest here; float32 if in doubt, ``auto`` off the CPU.

    While it measures, the model is in memory three times. Raises ModelError like `load`.
    """
    source = fetch(spec, cache_dir=cache_dir, progress=progress)
    loaded: dict[str, LoadedModel] = {}

    def get(dtype: str) -> LoadedModel:
        if dtype not in loaded:
            loaded[dtype] = load(
                spec,
                dtype=dtype,
                device=device,
                num_slots=num_slots,
                max_length=max_length,
                cache_dir=cache_dir,
            )
        return loaded[dtype]

    if device not in ("auto", "cpu") or (device == "auto" and torch.cuda.is_available()):
        model = get("auto")
        return model, Choice("dtype", model.dtype, {})

    def take() -> Choice:
        models = {dtype: get(dtype).model for dtype in ("float32", BFLOAT16_WEIGHTS, "bfloat16")}
        steps = {dtype: _step(model) for dtype, model in models.items()}
        return choose("dtype", steps, num_slots)

    key = {
        "machine": machine(),
        "model": fingerprint(source, "float32"),
        "threads": str(torch.get_num_threads()),
        "num_slots": str(num_slots),
    }
    choice = measurement_store(cache_dir).load_or_measure(CHOICE, {"choice": "dtype", **key}, take)
    return get(choice.value), choice


def _step(model: LanguageModel) -> Step:
    return lambda rows: _decode(model, rows)


def _decode(model: LanguageModel, rows: int) -> None:
    start = min(_CONTEXT, model.max_length - 1)
    logits = model.forward([Row(slot, start, (0,), 1) for slot in range(rows)])
    logits.argmax(dim=-1).tolist()  # waits for the device


def _on_cpu(model: LanguageModel) -> bool:
    return model.forward([Row(0, 0, (0,), 1)]).device.type == "cpu"
