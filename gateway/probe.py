"""The weights of a probe: how a model's hidden states become domain probabilities. Needs numpy alone.

The file is an .npz without pickled objects, so that loading one runs no code. Which prompts it has
learnt from, and what becomes of its probabilities, is not known here.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.errors import ConfigError, Problem
from gateway.types import DOMAINS

FORMAT_VERSION = 1
"""Of the file, and of what its numbers are multiplied with."""

Floats = npt.NDArray[np.float32]

BLOCK = 32
"""Tokens whose hidden states are averaged for training."""

_FIX = "train a new file with: draftgate classifier train-probe DATA.jsonl --model MODEL --out FILE"


class Blocks(msgspec.Struct, frozen=True):
    """What is left of one prompt for training."""

    means: npt.NDArray[np.float16]
    """[blocks, layers × hidden_size]: means of normalised hidden states."""
    sizes: npt.NDArray[np.int64]
    """[blocks]: their tokens, `BLOCK` but for the last."""


class ProbeWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Linear scores of each token, and how those of a prompt become probabilities.

    A token's score is the sum over the layers of its hidden state, divided by its root mean square,
    times ``projection``. A prompt has the mean over its tokens, and the highest mean of a window.
    """

    model: str
    """The model's name, for people."""
    model_weights: str
    """Hash of the weights of the only model that it fits; see `decoders.models.weights`."""
    layers: tuple[int, ...]
    projection: Floats
    """[layers, hidden_size, domains]."""
    mixing: Floats
    """[2, domains]: what the mean and the highest window count for."""
    intercept: Floats
    """[domains]."""
    window: int
    """Tokens of a window."""
    step: int
    """Tokens from the start of one window to the start of the next."""
    prefix: tuple[int, ...]
    """Token ids with which every chat of the model begins: they tell nothing, and are left out."""

    def probabilities(self, mean: Floats, highest: Floats) -> Floats:
        """Calibrated probabilities of prompts, […, domains], from their two scores."""
        logits = self.mixing[0] * mean + self.mixing[1] * highest + self.intercept
        probabilities: Floats = 1.0 / (1.0 + np.exp(-np.clip(logits, -30.0, 30.0)))
        return probabilities.astype(np.float32)

    def pooled(self, scores: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
        """Mean and highest window of the scores [tokens, domains] of one prompt, without its prefix."""
        sums = np.concatenate(
            [np.zeros((1, scores.shape[1])), np.cumsum(scores, axis=0, dtype=np.float64)]
        )
        mean = sums[-1] / max(len(scores), 1)
        if len(scores) <= self.window:
            return mean.astype(np.float32), mean.astype(np.float32)
        starts = np.arange(0, len(scores) - self.window, self.step)
        starts = np.append(starts, len(scores) - self.window)
        windows = (sums[starts + self.window] - sums[starts]) / self.window
        return mean.astype(np.float32), windows.max(axis=0).astype(np.float32)

    def dump(self) -> bytes:
        """The file's bytes; the same weights give the same bytes."""
        buffer = io.BytesIO()
        np.savez(
            buffer,
            format_version=np.array(FORMAT_VERSION),
            domains=np.array(DOMAINS),
            model=np.array(self.model),
            model_weights=np.array(self.model_weights),
            layers=np.array(self.layers, dtype=np.int32),
            projection=self.projection.astype(np.float32),
            mixing=self.mixing.astype(np.float32),
            intercept=self.intercept.astype(np.float32),
            window=np.array(self.window),
            step=np.array(self.step),
            prefix=np.array(self.prefix, dtype=np.int32),
        )
        return buffer.getvalue()


def load(path: Path) -> tuple[ProbeWeights, str]:
    """The weights in a file, and its SHA-256 in hex. Raises ConfigError naming the file and the fix."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise broken(path, f"cannot read the probe: {error.strerror}") from None
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError):
        raise broken(path, "not a probe (an .npz archive)") from None
    if problem := _mismatch(arrays):
        raise broken(path, problem)
    weights = ProbeWeights(
        model=str(arrays["model"]),
        model_weights=str(arrays["model_weights"]),
        layers=tuple(map(int, arrays["layers"])),
        **{name: arrays[name].astype(np.float32) for name in _NUMBERS},
        window=int(arrays["window"]),
        step=int(arrays["step"]),
        prefix=tuple(map(int, arrays["prefix"])),
    )
    return weights, hashlib.sha256(data).hexdigest()


def broken(path: Path, message: str) -> ConfigError:
    """What is wrong with a probe, and the fix."""
    return ConfigError([Problem(message, path=path, hint=_FIX)])


_NUMBERS = ("projection", "mixing", "intercept")
_NAMES = ("model", "model_weights", "layers", "window", "step", "prefix", *_NUMBERS)


def _mismatch(arrays: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """What is wrong with the arrays of a file, in words; None when they fit together."""
    if missing := sorted({"format_version", "domains", *_NAMES} - set(arrays)):
        return f"the probe lacks {', '.join(missing)}"
    if arrays["format_version"].tolist() != FORMAT_VERSION:
        found = arrays["format_version"].tolist()
        return f"the probe has format {found}, this release reads {FORMAT_VERSION}"
    if tuple(arrays["domains"].ravel().tolist()) != DOMAINS:
        return f"its domains are not {', '.join(DOMAINS)}"
    count, projection = len(DOMAINS), arrays["projection"]
    if projection.ndim != 3 or projection.shape[::2] != (arrays["layers"].size, count):
        return f"projection has shape {projection.shape}, expected (layers, hidden, {count})"
    for name, shape in (("mixing", (2, count)), ("intercept", (count,))):
        if arrays[name].shape != shape:
            return f"{name} has shape {arrays[name].shape}, expected {shape}"
    return _bad_values(arrays)


def _bad_values(arrays: Mapping[str, npt.NDArray[Any]]) -> str | None:
    for name in _NUMBERS:
        if arrays[name].dtype.kind != "f" or not np.isfinite(arrays[name]).all():
            return f"{name} holds values that are not finite numbers"
    for name in ("layers", "window", "step", "prefix"):
        if arrays[name].dtype.kind != "i" or arrays[name].ndim != (name in ("layers", "prefix")):
            return f"{name} is not what it should be: whole numbers"
    if min(arrays["window"], arrays["step"]) < 1:
        return "window and step must be at least 1"
    return None
