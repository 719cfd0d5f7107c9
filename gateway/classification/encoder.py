"""The second stage: a small convolutional sentence encoder over word pieces, run by numpy alone.

It imitates a large multilingual encoder at about a fifth of its cost (``docs/classification.md`` says
which and how closely). Every piece is computed once, whatever windows it is part of: windows are sums and
maxima over blocks of pieces. Knows no requests and no messages' roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification.pieces import Pieces
from gateway.types import DOMAINS

BLOCK = 20
"""Pieces in a block; every window is a run of blocks."""
SHORT, LONG = 2, 8
"""Blocks of a short window, about a sentence, and of a long one, about a paragraph."""
SEGMENT = 1_000
"""Pieces computed at once: their activations stay in the processor's cache."""
ORDERS = ((2, 0), (3, 1))
"""The two branches: how many neighbouring pieces a convolution sees, and how many of them are before."""
WIDTH = 256
"""Channels of a branch."""

Floats = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]


class Blocks(msgspec.Struct, frozen=True):
    """What is kept of a text: for each block of pieces its sum, its maximum and its number of pieces."""

    total: Floats
    """Shape (blocks, features)."""
    highest: Floats
    """Shape (blocks, channels)."""
    count: Floats
    """Shape (blocks,)."""

    def __len__(self) -> int:
        return len(self.count)


class Encoder:
    """Scores of windows of text for each domain. Safe to use from several threads."""

    def __init__(self, pieces: Pieces, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """``arrays``: those that ``SHAPES`` names, in any floating point type."""
        self._pieces = pieces
        self._table = np.ascontiguousarray(arrays["table"], dtype=np.uint8)
        self._scale = arrays["table_scale"].astype(np.float32)
        self._w: dict[str, Floats] = {
            name: np.ascontiguousarray(arrays[name], dtype=np.float32)
            for name in arrays
            if name not in ("table", "table_scale")
        }

    def blocks(self, text: str) -> Blocks:
        """The blocks of a normalised text; at least one, and none straddles two texts."""
        ids = np.array(self._pieces.ids(text) or [0], dtype=np.int64)
        return join([self._segment(ids[at : at + SEGMENT]) for at in range(0, len(ids), SEGMENT)])

    def scores(self, blocks: Blocks, starts: Ids, ends: Ids) -> Floats:
        """Scores of the windows from block ``starts`` up to ``ends``, shape (windows, domains)."""
        return self._head(*pooled(blocks, starts, ends))

    def seen(self, total: Floats, highest: Floats) -> Floats:
        """What the head reads of windows: their meaning, and the strongest of each channel."""
        w = self._w
        summed = total @ w["pool"] + w["pool_bias"]
        first = _relu(summed @ w["dense0"])
        second = _relu(summed @ w["skip1"] + first @ w["dense1"])
        third = _relu(second @ w["dense2"])
        meaning = np.tanh(second @ w["skip3"] + third @ w["dense3"])
        meaning /= np.maximum(np.linalg.norm(meaning, axis=1, keepdims=True), 1e-12)
        found: Floats = np.concatenate((meaning, highest), axis=1)
        return found

    def inputs(self, ids: Ids) -> Floats:
        """What the branches get for each piece, side by side."""
        unique, place = np.unique(ids, return_inverse=True)
        spread: Floats = (self._vectors(unique) @ self._w["spread"] + self._w["spread_bias"])[place]
        return spread

    def _vectors(self, ids: Ids) -> Floats:
        packed = self._table[ids]
        vectors = np.empty((len(ids), packed.shape[1] * 2), dtype=np.float32)
        vectors[:, 0::2] = packed >> 4
        vectors[:, 1::2] = packed & 15
        vectors -= 8.0
        vectors *= self._scale[ids, None]
        return vectors

    def _segment(self, ids: Ids) -> Blocks:
        """Blocks of up to SEGMENT pieces."""
        w = self._w
        unique, place = np.unique(ids, return_inverse=True)
        vectors = self._vectors(unique)
        inputs = vectors @ w["spread"] + w["spread_bias"]
        outputs = np.empty((len(ids), WIDTH * len(ORDERS)), dtype=np.float32)
        for branch, (order, left) in enumerate(ORDERS):
            channels = slice(branch * WIDTH, (branch + 1) * WIDTH)
            narrow = (inputs[:, channels] @ w[f"narrow1_{order}"])[place]
            hidden = convolved(narrow, w[f"conv1_{order}"], w[f"bias1_{order}"], order, left)
            hidden += inputs[place, channels]
            narrow = hidden @ w[f"narrow2_{order}"]
            last = convolved(narrow, w[f"conv2_{order}"], w[f"bias2_{order}"], order, left)
            last += hidden
            outputs[:, channels] = last
        outputs -= outputs.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", outputs, outputs) / outputs.shape[1]
        outputs *= (1.0 / np.sqrt(variance + 1e-5))[:, None]
        total = np.concatenate(
            (_blockwise(outputs, 0.0).sum(axis=1), _blockwise(vectors[place], 0.0).sum(axis=1)),
            axis=1,
        )
        starts = np.arange(0, len(ids), BLOCK)
        count = np.minimum(BLOCK, len(ids) - starts).astype(np.float32)
        return Blocks(total, _blockwise(outputs, -np.inf).max(axis=1), count)

    def _head(self, total: Floats, highest: Floats) -> Floats:
        w = self._w
        hidden = _relu(self.seen(total, highest) @ w["head1"] + w["head1_bias"])
        scores: Floats = hidden @ w["head2"] + w["head2_bias"]
        return scores


def join(parts: Sequence[Blocks]) -> Blocks:
    """Several texts' blocks in a row, so that a window can reach over them."""
    if len(parts) == 1:
        return parts[0]
    return Blocks(
        np.concatenate([part.total for part in parts]),
        np.concatenate([part.highest for part in parts]),
        np.concatenate([part.count for part in parts]),
    )


def windows(first: int, last: int, length: int) -> list[tuple[int, int]]:
    """Half overlapping runs of ``length`` blocks that cover the blocks from ``first`` up to ``last``."""
    if last - first <= length:
        return [(first, last)]
    runs = [(at, at + length) for at in range(first, last - length, max(length // 2, 1))]
    return [*runs, (last - length, last)]


def shapes(
    pieces: int, rank: int, narrow1: int, narrow2: int, hidden: int
) -> dict[str, tuple[int, ...]]:
    """The arrays of an encoder and their shapes."""
    both = WIDTH * len(ORDERS)
    wanted: dict[str, tuple[int, ...]] = {
        "table": (pieces, rank // 2),
        "table_scale": (pieces,),
        "spread": (rank, both),
        "spread_bias": (both,),
        "pool": (both + rank, 512),
        "pool_bias": (512,),
        "dense0": (512, 320),
        "skip1": (512, 320),
        "dense1": (320, 320),
        "dense2": (320, 512),
        "skip3": (320, 512),
        "dense3": (512, 512),
        "head1": (512 + both, hidden),
        "head1_bias": (hidden,),
        "head2": (hidden, len(DOMAINS)),
        "head2_bias": (len(DOMAINS),),
    }
    for order, _ in ORDERS:
        wanted |= {
            f"narrow1_{order}": (WIDTH, narrow1),
            f"conv1_{order}": (order * narrow1, WIDTH),
            f"bias1_{order}": (WIDTH,),
            f"narrow2_{order}": (WIDTH, narrow2),
            f"conv2_{order}": (order * narrow2, WIDTH),
            f"bias2_{order}": (WIDTH,),
        }
    return wanted


def _blockwise(rows: Floats, filler: float) -> Floats:
    """Shape (blocks, BLOCK, columns), the last block filled up."""
    missing = -len(rows) % BLOCK
    if missing:
        rows = np.concatenate((rows, np.full((missing, rows.shape[1]), filler, dtype=np.float32)))
    return rows.reshape(-1, BLOCK, rows.shape[1])


def convolved(inputs: Floats, weights: Floats, bias: Floats, order: int, left: int) -> Floats:
    """Rectified convolution of shape (pieces, WIDTH); beyond both ends are zeros."""
    count, width = inputs.shape
    padded = np.zeros((count + order - 1, width), dtype=np.float32)
    padded[left : left + count] = inputs
    # One product over overlapping rows: `order` neighbours lie side by side in memory already.
    rows = np.lib.stride_tricks.as_strided(
        padded, (count, order * width), padded.strides, writeable=False
    )
    outputs = rows @ weights
    outputs += bias
    return _relu(outputs)


def _relu(values: Floats) -> Floats:
    rectified: Floats = np.maximum(values, 0.0, out=values)
    return rectified


def pooled(blocks: Blocks, starts: Ids, ends: Ids) -> tuple[Floats, Floats]:
    """Sums over windows divided by the root of their pieces, and their maxima."""
    pairs = np.stack((starts, ends), axis=1).ravel()
    # reduceat takes [start, end) at even places; a row of padding lets a window end where the text does.
    total = np.add.reduceat(_padded(blocks.total), pairs)[::2]
    count = np.add.reduceat(np.append(blocks.count, np.float32(0.0)), pairs)[::2]
    highest = np.maximum.reduceat(_padded(blocks.highest), pairs)[::2]
    scaled: Floats = total / np.sqrt(count)[:, None]
    return scaled, highest


def _padded(rows: Floats) -> Floats:
    return np.concatenate((rows, np.zeros_like(rows[:1])))
