"""The third stage's reader: a small transformer over word pieces, run by numpy alone.

It is MiniLM (six layers, English), with its weights in 8 bits; ``docs/classification.md`` says which.
Reads short normalised texts. Knows no requests, no domains and no scores.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

WIDTH = 384
HEADS = 12
LAYERS = 6
INNER = 4 * WIDTH
WINDOW = 128
"""Word pieces of the longest text, the marks at both ends included."""
TAPPED = (3, 4, 5, 6)
"""The layers whose mean is kept; of the last, the maximum too."""
FEATURES = WIDTH * (len(TAPPED) + 1)

Floats = npt.NDArray[np.floating]

_EPSILON = 1e-12
_UNKNOWN = "[UNK]"
_INSIDE = "##"
"""Before a piece that goes on with a word."""
_MATRICES = {
    "qkv": (WIDTH, 3 * WIDTH),
    "mix": (WIDTH, WIDTH),
    "up": (WIDTH, INNER),
    "down": (INNER, WIDTH),
}
_VECTORS = {
    "qkv_bias": 3 * WIDTH,
    "mix_bias": WIDTH,
    "mix_scale": WIDTH,
    "mix_shift": WIDTH,
    "up_bias": INNER,
    "down_bias": WIDTH,
    "down_scale": WIDTH,
    "down_shift": WIDTH,
}


class WordPieces:
    """The numbers of a text's pieces in a vocabulary that has ``[UNK]``, ``[CLS]`` and ``[SEP]``."""

    def __init__(self, names: Sequence[str]) -> None:
        vocabulary = {name: at for at, name in enumerate(names)}
        self.first, self.last = vocabulary["[CLS]"], vocabulary["[SEP]"]
        self._tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=_UNKNOWN))
        self._tokenizer.normalizer = BertNormalizer(lowercase=True)
        self._tokenizer.pre_tokenizer = BertPreTokenizer()

    def ids(self, text: str) -> tuple[list[int], float]:
        """Of a normalised text, without marks, and the share of its words that are pieces of their own.

        Of English most words are; of other languages few.
        """
        clean = text.encode("utf-8", "replace").decode("utf-8")
        encoded = self._tokenizer.encode(clean, add_special_tokens=False)
        tokens: list[str] = encoded.tokens
        words = known = 0
        for token, after in itertools.zip_longest(tokens, tokens[1:], fillvalue=""):
            if token.startswith(_INSIDE) or not (token == _UNKNOWN or token.isalpha()):
                continue
            words += 1
            known += token.isascii() and token.isalpha() and not after.startswith(_INSIDE)
        return encoded.ids, known / max(words, 1)


class Transformer:
    """What short texts mean. Safe to use from several threads."""

    def __init__(self, pieces: WordPieces, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """``arrays``: those that `shapes` names."""
        self.pieces = pieces
        self._table = arrays["words"]
        self._table_scale = arrays["words_scale"].astype(np.float32)
        self._w: dict[str, Floats] = {}
        for name in _names(LAYERS):
            values = arrays[name].astype(np.float32)
            if f"{name}_steps" in arrays:
                values *= arrays[f"{name}_steps"].astype(np.float32)
            self._w[name] = np.ascontiguousarray(values)

    def read(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Of texts of up to ``WINDOW - 2`` pieces each, what they mean: shape (texts, FEATURES)."""
        marked = [[self.pieces.first, *ids, self.pieces.last] for ids in texts]
        ends = np.cumsum([0, *map(len, marked)])
        hidden = self._embedded(marked)
        kept = []
        for layer in range(LAYERS):
            hidden = self._layer(hidden, layer, ends)
            if layer + 1 in TAPPED:
                kept.append(np.add.reduceat(hidden, ends[:-1]) / np.diff(ends)[:, None])
        kept.append(np.maximum.reduceat(hidden, ends[:-1]))
        found: Floats = np.concatenate(kept, axis=1)
        return found

    def _embedded(self, marked: Sequence[Sequence[int]]) -> Floats:
        ids = np.concatenate([np.asarray(text, dtype=np.int64) for text in marked])
        places = np.concatenate([np.arange(len(text)) for text in marked])
        hidden = self._table[ids].astype(np.float32) * self._table_scale[ids, None]
        hidden += self._w["places"][places]
        return self._normal(hidden, "norm")

    def _layer(self, hidden: Floats, layer: int, ends: npt.NDArray[np.int64]) -> Floats:
        w = self._w
        packed = hidden @ w[f"qkv_{layer}"]
        packed += w[f"qkv_bias_{layer}"]
        mixed = np.empty_like(hidden)
        for start, end in itertools.pairwise(ends):
            mixed[start:end] = _attended(packed[start:end])
        mixed = mixed @ w[f"mix_{layer}"]
        mixed += w[f"mix_bias_{layer}"]
        mixed += hidden
        hidden = self._normal(mixed, "mix", layer)
        inner = hidden @ w[f"up_{layer}"]
        inner += w[f"up_bias_{layer}"]
        last = _gelu(inner) @ w[f"down_{layer}"]
        last += w[f"down_bias_{layer}"]
        last += hidden
        return self._normal(last, "down", layer)

    def _normal(self, rows: Floats, name: str, layer: int | None = None) -> Floats:
        suffix = "" if layer is None else f"_{layer}"
        rows -= rows.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", rows, rows) / WIDTH
        rows *= (1.0 / np.sqrt(variance + _EPSILON))[:, None]
        rows *= self._w[f"{name}_scale{suffix}"]
        rows += self._w[f"{name}_shift{suffix}"]
        return rows


def shapes(pieces: int) -> dict[str, tuple[int, ...]]:
    """The arrays of a transformer and their shapes; matrices are 8-bit numbers times steps a column."""
    wanted: dict[str, tuple[int, ...]] = {
        "words": (pieces, WIDTH),
        "words_scale": (pieces,),
    }
    for name in _names(LAYERS):
        base = name.rpartition("_")[0]
        if base in _MATRICES:
            wanted[name] = _MATRICES[base]
            wanted[f"{name}_steps"] = (_MATRICES[base][1],)
        elif base in _VECTORS:
            wanted[name] = (_VECTORS[base],)
        else:
            wanted[name] = (WINDOW, WIDTH) if name == "places" else (WIDTH,)
    return wanted


def _names(layers: int) -> list[str]:
    """Everything but the table of words."""
    own = [f"{name}_{at}" for at in range(layers) for name in (*_MATRICES, *_VECTORS)]
    return ["places", "norm_scale", "norm_shift", *own]


def _attended(packed: Floats) -> Floats:
    """Every piece of a text looks at all: shape (pieces, 3 × WIDTH) to (pieces, WIDTH)."""
    count = len(packed)
    queries, keys, values = packed.reshape(count, 3, HEADS, WIDTH // HEADS).transpose(1, 2, 0, 3)
    weights = queries @ keys.transpose(0, 2, 1)
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    mixed = weights @ values
    mixed /= weights.sum(axis=-1, keepdims=True)
    found: Floats = mixed.transpose(1, 0, 2).reshape(count, WIDTH)
    return found


def _gelu(values: Floats) -> Floats:
    """The smooth rectifier, by its tanh form."""
    inner = values * values
    inner *= 0.044715
    inner += 1.0
    inner *= values
    inner *= 0.7978845608
    np.tanh(inner, out=inner)
    inner += 1.0
    inner *= values
    inner *= 0.5
    return inner
