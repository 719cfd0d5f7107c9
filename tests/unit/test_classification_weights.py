from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.classification import weights
from gateway.classification.domain import SHIPPED_WEIGHTS, DomainClassifier
from gateway.errors import ConfigError

FIX = "draftgate classifier train"


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        DomainClassifier(weights=str(path))
    message = str(caught.value)
    assert str(path) in message
    assert FIX in message
    return message


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    with np.load(SHIPPED_WEIGHTS, allow_pickle=False) as archive:
        return dict(archive)


def write(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def test_the_content_hash_is_the_sha_256_of_the_file() -> None:
    assert hashlib.sha256(SHIPPED_WEIGHTS.read_bytes()).hexdigest() == (
        DomainClassifier().content_hash
    )


def test_the_shipped_file_stays_below_forty_five_megabytes() -> None:
    assert SHIPPED_WEIGHTS.stat().st_size <= 45_000_000


def test_the_encoder_of_a_file_can_be_trained_with_and_written_alone(tmp_path: Path) -> None:
    arrays = weights.load_encoder(SHIPPED_WEIGHTS)
    path = tmp_path / "encoder.npz"
    path.write_bytes(weights.dump_encoder(arrays))

    again = weights.load_encoder(path)

    assert arrays.keys() == again.keys()
    assert all((arrays[name] == again[name]).all() for name in arrays)


def test_a_file_without_an_encoder_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "weights.npz", {"format": np.array(weights.FORMAT)})

    with pytest.raises(ConfigError, match="lacks bias1_2"):
        weights.load_encoder(path)


def test_a_missing_file_is_named() -> None:
    assert "No such file" in refusal(Path("no/such/weights.npz"))


@pytest.mark.parametrize(
    "content",
    [b"", b"not weights at all", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00", b"\x80\x04."],
)
def test_a_file_that_is_no_archive_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.npz"
    path.write_bytes(content)

    assert "not a classifier weights file" in refusal(path)


def test_a_single_array_is_no_weights_file(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    path = tmp_path / "weights.npz"
    path.write_bytes(buffer.getvalue())

    assert "not a classifier weights file" in refusal(path)


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    path.write_bytes(SHIPPED_WEIGHTS.read_bytes()[:-1000])

    assert "not a classifier weights file" in refusal(path)


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    data = bytearray(SHIPPED_WEIGHTS.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "weights.npz"
    path.write_bytes(data)

    assert "not a classifier weights file" in refusal(path)


def test_pickled_objects_are_not_loaded(tmp_path: Path, shipped: dict[str, Any]) -> None:
    path = write(tmp_path / "weights.npz", {**shipped, "bias": np.array([{}] * 10, dtype=object)})

    assert "not a classifier weights file" in refusal(path)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "missing": (lambda a: {k: v for k, v in a.items() if k not in ("idf", "stack")}, "idf, stack"),
    "older format": (lambda a: a | {"format": np.array(1)}, "format 1"),
    "older features": (lambda a: a | {"features_version": np.array(0)}, "features version 0"),
    "domains": (lambda a: a | {"domains": a["domains"][::-1]}, "its domains are not"),
    "weights": (lambda a: a | {"weights": a["weights"][:, :9]}, "weights has shape"),
    "idf": (lambda a: a | {"idf": a["idf"][1:]}, "idf has shape"),
    "stack": (lambda a: a | {"stack": a["stack"][:3]}, "stack has shape"),
    "encoder": (lambda a: a | {"pool": a["pool"][:3]}, "pool has shape"),
    "encoder missing": (lambda a: {k: v for k, v in a.items() if k != "pool"}, "lacks pool"),
    "flat encoder": (lambda a: a | {"head2": a["head2"].ravel()}, "head2 has shape"),
    "wide table": (lambda a: a | {"table": a["table"].astype(np.int64)}, "must be bytes"),
    "fewer pieces": (lambda a: a | {"pieces": a["pieces"][:100]}, "pieces for"),
    "broken pieces": (lambda a: a | {"pieces": a["pieces"] | np.uint8(0x80)}, "not UTF-8"),
    "not finite": (lambda a: a | {"bias": a["bias"] * np.nan}, "bias holds values"),
    "text": (lambda a: a | {"bias": np.array(["x"] * 10)}, "bias holds values"),
    "unordered": (lambda a: a | {"kept": a["kept"][::-1]}, "kept must be ascending"),
    "out of range": (lambda a: a | {"kept": a["kept"] + np.uint32(1 << 21)}, "kept must be"),
    "reader's stack": (
        lambda a: a | {"reader.stack": a["reader.stack"][:3]},
        "the reader's stack has shape",
    ),
    "reader's layer": (
        lambda a: {k: v for k, v in a.items() if k != "reader.up_3"},
        "the reader's up_3 has shape missing",
    ),
    "reader's words": (
        lambda a: {k: v for k, v in a.items() if k != "reader.vocabulary"},
        "no vocabulary or no head",
    ),
    "reader's marks": (
        lambda a: a | {"reader.vocabulary": np.frombuffer(b"a\nb", dtype=np.uint8)},
        "vocabulary lacks [CLS], [SEP], [UNK]",
    ),
    "reader not finite": (
        lambda a: a | {"reader.stack": a["reader.stack"] * np.nan},
        "the reader's stack holds values",
    ),
    "signed": (lambda a: a | {"kept": a["kept"].astype(np.int64)}, "kept must be"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_arrays_that_do_not_fit_are_named(
    tmp_path: Path, shipped: dict[str, Any], change: str
) -> None:
    alter, words = CHANGES[change]

    assert words in refusal(write(tmp_path / "weights.npz", alter(shipped)))
