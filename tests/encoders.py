"""An encoder of a few random weights, small enough to train with in a test."""

from __future__ import annotations

import numpy as np

from gateway.classification import encoder
from gateway.classification.weights import Arrays

LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß?!.,'0123456789"


def tiny_encoder(seed: int = 0) -> Arrays:
    """The arrays of an encoder without a head; its pieces are letters."""
    rng = np.random.default_rng(seed)
    names = ["<unk>", "▁", *LETTERS, *(f"▁{letter}" for letter in LETTERS)]
    shapes = encoder.shapes(len(names), 16, 8, 8, 4)
    arrays: Arrays = {
        name: (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float16)
        for name, shape in shapes.items()
        if not name.startswith("head")
    }
    arrays["table"] = rng.integers(0, 256, shapes["table"], dtype=np.uint8)
    arrays["table_scale"] = np.full(len(names), 0.1, dtype=np.float16)
    arrays["pieces"] = np.frombuffer("\n".join(names).encode(), dtype=np.uint8)
    arrays["piece_scores"] = -rng.random(len(names)).astype(np.float32) - 1
    return arrays


def tiny_head(seed: int = 0) -> Arrays:
    """A head for it."""
    rng = np.random.default_rng(seed + 1)
    shapes = encoder.shapes(1, 16, 8, 8, 4)
    return {
        name: (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in shapes.items()
        if name.startswith("head")
    }
