"""Loading a folder as users have it, and what identifies it."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from decoders.loader import load
from decoders.models.base import ModelError, Row
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


class Bomb:
    """Runs when it is unpickled."""

    def __init__(self, place):
        self._place = place

    def __reduce__(self):
        return (Path.touch, (self._place,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt"])
def test_pickled_weights_are_refused_unread(folder, tmp_path, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "it ran")))

    with pytest.raises(ModelError, match=f"{name}, a pickle.*safetensors"):
        load(str(folder), device="cpu")
    assert not (tmp_path / "it ran").exists()


def test_code_that_comes_with_a_model_is_not_run(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'it ran')!r}, 'w')")

    with pytest.raises(ModelError, match="cannot load"):
        load(str(folder), device="cpu")
    assert not (tmp_path / "it ran").exists()
