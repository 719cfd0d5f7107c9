"""Loading a folder as users have it, and what identifies it."""

import shutil

import pytest
import torch

from decoders.loader import load
from decoders.models.base import Row
from decoders.models.fused import FusedModel


@pytest.fixture
def folder(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "mine")


def test_a_folder_is_loaded_named_and_fused(folder):
    loaded = load(str(folder), device="cpu", num_slots=2, max_length=4096)

    assert loaded.name == "mine"
    assert isinstance(loaded.model, FusedModel)
    assert loaded.model.max_length == 256  # the model's own context
    assert loaded.model.vocab_size == 258  # padding of the embedding left out
    assert loaded.tokenizer.eos_ids == {1}


def test_folders_inside_a_model_folder_are_no_obstacle(folder):
    (folder / "onnx").mkdir()
    (folder / ".cache").mkdir()

    assert load(str(folder), device="cpu").fingerprint


def test_the_fingerprint_is_the_contents_and_not_the_place(folder, tmp_path):
    before = load(str(folder), device="cpu").fingerprint
    moved = shutil.move(folder, tmp_path / "elsewhere")

    assert load(str(moved), device="cpu").fingerprint == before
    assert load(str(moved), device="cpu", dtype="bfloat16").fingerprint != before


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_the_fingerprint_sees_changed_weights_of_the_same_size(folder, share):
    before = load(str(folder), device="cpu").fingerprint
    weights = folder / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[int(len(raw) * share)] ^= 1
    weights.write_bytes(raw)

    assert load(str(folder), device="cpu").fingerprint != before


def test_rounded_weights_are_those_of_bfloat16_and_computed_with_in_float32(tiny_model):
    options = {"device": "cpu", "num_slots": 1, "max_length": 32}
    exact, rounded = (
        load(str(tiny_model), dtype=dtype, **options) for dtype in ("float32", "bfloat16-weights")
    )
    row = [Row(0, 0, (1, 2, 3), 3)]

    there, here = exact.model.forward(row), rounded.model.forward(row)

    assert here.dtype == torch.float32
    assert not torch.equal(there, here)
    torch.testing.assert_close(there, here, atol=0.02 * there.abs().max().item(), rtol=0)
    assert rounded.dtype == "bfloat16-weights"
    assert rounded.weights == exact.weights
    assert rounded.fingerprint != exact.fingerprint
