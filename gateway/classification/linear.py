"""The domain classifier's arithmetic: TF-IDF vectors, linear scores, calibration, and the file they live in.

Knows nothing of requests or messages: it scores windows of normalised text. Needs numpy alone; the file
is an .npz without pickled objects, so that loading one runs no code.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification import features
from gateway.errors import ConfigError, Problem
from gateway.types import DOMAINS

WINDOW = 1400
"""Characters of normalised text in a window."""
STEP = 1050
"""Characters from the start of one window to the start of the next; the rest overlaps."""

Floats = npt.NDArray[np.float32]
Vector = tuple[npt.NDArray[np.int64], Floats]
"""Columns and their values, each column once."""

_FIX = "train a new file with: draftgate classifier train DATA.jsonl --out FILE"


class Vocabulary:
    """The buckets that count as features, each with its inverse document frequency."""

    def __init__(self, kept: npt.NDArray[np.int64], idf: Floats) -> None:
        self.kept = kept
        """Buckets in ascending order, shape (columns,)."""
        self.idf = idf
        self._column = np.full(features.NUM_BUCKETS, -1, dtype=np.int32)
        self._column[kept] = np.arange(len(kept), dtype=np.int32)
        self._first_word_column = int(np.searchsorted(kept, features.CHARACTER_BUCKETS))

    def vector(self, window: str) -> Vector:
        """The TF-IDF vector of a window: the character part and the word part each of length one."""
        found = self._column[features.buckets(window)]
        columns, counts = np.unique(found[found >= 0], return_counts=True)
        values = (1.0 + np.log(counts)) * self.idf[columns]
        split = int(np.searchsorted(columns, self._first_word_column))
        for part in (values[:split], values[split:]):
            part /= max(float(np.sqrt(part @ part)), 1e-9)
        return columns.astype(np.int64), values.astype(np.float32)


class LinearModel(msgspec.Struct, frozen=True):
    """One linear score for each domain over a vocabulary, and how scores become probabilities."""

    vocabulary: Vocabulary
    weights: Floats
    """Shape (columns, domains)."""
    bias: Floats
    slope: Floats
    intercept: Floats
    """Probability = logistic(slope * score + intercept); each of shape (domains,)."""

    def scores(self, windows: Sequence[str]) -> Floats:
        """Uncalibrated scores, shape (windows, domains)."""
        rows = np.empty((len(windows), len(DOMAINS)), dtype=np.float32)
        for row, window in zip(rows, windows, strict=True):
            columns, values = self.vocabulary.vector(window)
            row[:] = values @ self.weights[columns] + self.bias
        return rows

    def probabilities(self, scores: Floats) -> Floats:
        """Calibrated probabilities of scores whose last axis is the domains."""
        logits = np.clip(self.slope * scores + self.intercept, -30.0, 30.0)
        probabilities: Floats = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
        return probabilities

    def dump(self) -> bytes:
        """The file's bytes; the same model gives the same bytes."""
        buffer = io.BytesIO()
        np.savez(
            buffer,
            features_version=np.array(features.FEATURES_VERSION),
            domains=np.array(DOMAINS),
            kept=self.vocabulary.kept.astype(np.uint32),
            idf=self.vocabulary.idf.astype(np.float16),
            weights=self.weights.astype(np.float16),
            bias=self.bias.astype(np.float32),
            slope=self.slope.astype(np.float32),
            intercept=self.intercept.astype(np.float32),
        )
        return buffer.getvalue()


def load(path: Path) -> tuple[LinearModel, str]:
    """The model in a file, and the file's SHA-256 in hex. Raises ConfigError naming the file and the fix."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _broken(path, f"cannot read the classifier weights: {error.strerror}") from None
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError):
        raise _broken(path, "not a classifier weights file (an .npz archive)") from None
    if problem := _mismatch(arrays):
        raise _broken(path, problem)
    vocabulary = Vocabulary(arrays["kept"].astype(np.int64), arrays["idf"].astype(np.float32))
    numbers = [arrays[name].astype(np.float32) for name in _NUMBERS]
    return LinearModel(vocabulary, *numbers), hashlib.sha256(data).hexdigest()


_NUMBERS = ("weights", "bias", "slope", "intercept")


def _mismatch(arrays: dict[str, Any]) -> str | None:
    """What is wrong with the arrays of a file, in words; None when they fit together."""
    if missing := sorted({"features_version", "domains", "kept", "idf", *_NUMBERS} - set(arrays)):
        return f"the weights file lacks {', '.join(missing)}"
    if arrays["features_version"].tolist() != features.FEATURES_VERSION:
        return (
            f"made for features version {arrays['features_version'].tolist()}, "
            f"this release computes version {features.FEATURES_VERSION}"
        )
    if tuple(arrays["domains"].ravel().tolist()) != DOMAINS:
        return f"its domains are not {', '.join(DOMAINS)}"
    columns = arrays["kept"].size
    shapes = {"kept": (columns,), "idf": (columns,), "weights": (columns, len(DOMAINS))}
    shapes |= {name: (len(DOMAINS),) for name in _NUMBERS[1:]}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            return f"{name} has shape {arrays[name].shape}, expected {shape}"
    return _bad_values(arrays)


def _bad_values(arrays: dict[str, Any]) -> str | None:
    kept = arrays["kept"]
    if (
        kept.dtype != np.uint32
        or (kept >= features.NUM_BUCKETS).any()
        or (kept[1:] <= kept[:-1]).any()
    ):
        return f"kept must be ascending 32-bit buckets below {features.NUM_BUCKETS}"
    for name in ("idf", *_NUMBERS):
        if arrays[name].dtype.kind != "f" or not np.isfinite(arrays[name]).all():
            return f"{name} holds values that are not finite numbers"
    return None


def _broken(path: Path, message: str) -> ConfigError:
    return ConfigError([Problem(message, path=path, hint=_FIX)])
