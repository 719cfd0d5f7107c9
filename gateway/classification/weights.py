"""The file of a text model: written and read whole, with every array checked.

An .npz archive without pickled objects, so that loading one runs no code.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.classification import encoder, features, reader
from gateway.classification.linear import LinearModel, Vocabulary
from gateway.classification.pieces import Pieces
from gateway.classification.stack import Stack
from gateway.classification.stages import EncoderStage, LexicalStage
from gateway.classification.text_model import TextModel
from gateway.errors import ConfigError, Problem
from gateway.types import DOMAINS

FORMAT = 3
"""Raised whenever an older release could not read a file."""

Arrays = dict[str, npt.NDArray[Any]]

_FIX = "train a new file with: draftgate classifier train DATA.jsonl --out FILE"
_KINDS = LexicalStage.kinds + EncoderStage.kinds


def dump(
    lexical: LinearModel, encoder_arrays: Mapping[str, npt.NDArray[Any]], stack: Stack
) -> bytes:
    """The file's bytes; the same model gives the same bytes.

    ``encoder_arrays``: those of `encoder.shapes`, ``pieces`` and ``piece_scores``; and a reader's, if any.
    """
    arrays: Arrays = {
        "format": np.array(FORMAT),
        "features_version": np.array(features.FEATURES_VERSION),
        "domains": np.array(DOMAINS),
        "kept": lexical.vocabulary.kept.astype(np.uint32),
        "idf": lexical.vocabulary.idf.astype(np.float16),
        "weights": lexical.weights.astype(np.float16),
        "bias": lexical.bias.astype(np.float32),
        "stack": stack.weights.astype(np.float32),
        "stack_bias": stack.bias.astype(np.float32),
    }
    return _bytes(arrays | dict(encoder_arrays))


def load(path: Path) -> tuple[TextModel, str]:
    """The model in a file, and the file's SHA-256 in hex. Raises ConfigError naming the file and the fix."""
    arrays, data = _read(path)
    if problem := _mismatch(arrays):
        raise _broken(path, problem)
    return _model(arrays), hashlib.sha256(data).hexdigest()


def dump_encoder(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The bytes of a file with an encoder alone, to train with."""
    return _bytes({"format": np.array(FORMAT)} | dict(arrays))


def load_encoder(path: Path) -> Arrays:
    """The encoder in a file, with the reader's if it has one, heads or none. Raises ConfigError."""
    arrays, _ = _read(path)
    if missing := sorted({"format", *_ENCODER} - set(arrays)):
        raise _broken(path, f"the file lacks {', '.join(missing)}")
    if arrays["format"].tolist() != FORMAT:
        raise _broken(
            path, f"made for format {arrays['format'].tolist()}, this release reads {FORMAT}"
        )
    own = {name for name in arrays if name.startswith(reader.PREFIX)}
    return {name: arrays[name] for name in (*_ENCODER, *sorted(own - set(reader.TRAINED)))}


def _bytes(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _read(path: Path) -> tuple[Arrays, bytes]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _broken(path, f"cannot read the classifier weights: {error.strerror}") from None
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}, data
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError):
        raise _broken(path, "not a classifier weights file (an .npz archive)") from None


def piece_names(names: npt.NDArray[np.uint8]) -> list[str]:
    """The pieces in an array of UTF-8 bytes, one a line."""
    return names.tobytes().decode("utf-8").split("\n")


def _model(arrays: Arrays) -> TextModel:
    vocabulary = Vocabulary(arrays["kept"].astype(np.int64), arrays["idf"].astype(np.float32))
    lexical = LinearModel(
        vocabulary, arrays["weights"].astype(np.float32), arrays["bias"].astype(np.float32)
    )
    pieces = Pieces(piece_names(arrays["pieces"]), arrays["piece_scores"].astype(float).tolist())
    stack = Stack(arrays["stack"], arrays["stack_bias"])
    encoder_model = encoder.Encoder(pieces, {name: arrays[name] for name in _shapes(arrays)})
    stages = (LexicalStage(lexical), EncoderStage(encoder_model))
    return TextModel(stages, stack, reader.reader_of(arrays))


_ENCODER = (
    "pieces",
    "piece_scores",
    *(name for name in encoder.shapes(1, 2, 1, 1, 1) if not name.startswith("head")),
)
_LEXICAL = ("kept", "idf", "weights", "bias")
_STACK = ("stack", "stack_bias")
_SIZES = ("table", "narrow1_2", "narrow2_2", "head2")
"""Arrays that say how large an encoder is."""


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    """The encoder's arrays and what their shapes must be, given its sizes."""
    rows, half_rank = arrays["table"].shape
    widths = (arrays[name].shape[-1] for name in ("narrow1_2", "narrow2_2"))
    narrow1, narrow2 = widths
    return encoder.shapes(rows, 2 * half_rank, narrow1, narrow2, arrays["head2"].shape[0])


def _mismatch(arrays: Arrays) -> str | None:
    """What is wrong with the arrays of a file, in words; None when they fit together."""
    header = {"format", "features_version", "domains"}
    if missing := sorted(
        {*header, *_LEXICAL, *_STACK, *_SIZES, "pieces", "piece_scores"} - set(arrays)
    ):
        return f"the weights file lacks {', '.join(missing)}"
    found = (arrays["format"].tolist(), arrays["features_version"].tolist())
    if found != (FORMAT, features.FEATURES_VERSION):
        return (
            f"made for format {found[0]} and features version {found[1]}, "
            f"this release reads {FORMAT} and {features.FEATURES_VERSION}"
        )
    if tuple(arrays["domains"].ravel().tolist()) != DOMAINS:
        return f"its domains are not {', '.join(DOMAINS)}"
    for name in _SIZES:
        if arrays[name].ndim != 2:
            return f"{name} has shape {arrays[name].shape}, expected two dimensions"
    return _bad_shape(arrays) or _bad_values(arrays) or reader.mismatch(arrays, _KINDS)


def _bad_shape(arrays: Arrays) -> str | None:
    columns, domains = arrays["kept"].size, len(DOMAINS)
    shapes = {
        "kept": (columns,),
        "idf": (columns,),
        "weights": (columns, domains),
        "bias": (domains,),
    }
    shapes |= {"stack": (_KINDS, domains), "stack_bias": (domains,)}
    shapes |= {"piece_scores": (len(arrays["table"]),)}
    shapes |= _shapes(arrays)
    if missing := sorted(set(shapes) - set(arrays)):
        return f"the weights file lacks {', '.join(missing)}"
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            return f"{name} has shape {arrays[name].shape}, expected {shape}"
    return None


def _bad_values(arrays: Arrays) -> str | None:
    kept = arrays["kept"]
    if (
        kept.dtype != np.uint32
        or (kept >= features.NUM_BUCKETS).any()
        or (kept[1:] <= kept[:-1]).any()
    ):
        return f"kept must be ascending 32-bit buckets below {features.NUM_BUCKETS}"
    if arrays["table"].dtype != np.uint8 or arrays["pieces"].dtype != np.uint8:
        return "table and pieces must be bytes"
    for name in sorted({*_LEXICAL, *_STACK, "piece_scores", *_shapes(arrays)} - {"kept", "table"}):
        if arrays[name].dtype.kind != "f" or not np.isfinite(arrays[name]).all():
            return f"{name} holds values that are not finite numbers"
    try:
        names = piece_names(arrays["pieces"])
    except UnicodeDecodeError:
        return "pieces are not UTF-8"
    if len(names) != len(arrays["table"]):
        return f"{len(names)} pieces for {len(arrays['table'])} vectors"
    return None


def _broken(path: Path, message: str) -> ConfigError:
    return ConfigError([Problem(message, path=path, hint=_FIX)])
