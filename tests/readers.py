"""A reader of random weights over a few words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.classification import reader, transformer
from gateway.classification.weights import Arrays

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "my",
    "knee",
    "hurts",
    "the",
    "sun",
    "is",
    "out",
    "##s",
)


def tiny_transformer(seed: int = 0, words: Sequence[str] = WORDS) -> Arrays:
    """The arrays of a transformer as a weights file holds them, without a head."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, shape in transformer.shapes(len(words)).items():
        if name.endswith(("_steps", "words_scale")):
            arrays[name] = np.full(shape, 0.01, dtype=np.float32)
        elif f"{name}_steps" in transformer.shapes(len(words)) or name == "words":
            arrays[name] = rng.integers(-9, 10, shape, dtype=np.int8)
        else:
            arrays[name] = rng.normal(size=shape).astype(np.float32)
    arrays["vocabulary"] = np.frombuffer("\n".join(words).encode(), dtype=np.uint8)
    return {reader.PREFIX + name: value for name, value in arrays.items()}
