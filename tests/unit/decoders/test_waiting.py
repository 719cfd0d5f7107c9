"""How idle threads wait: the faster way, passive in doubt, and a user's own setting before all."""

import json
import subprocess
import sys

import pytest

from decoders import waiting
from decoders.choice import Choice
from decoders.waiting import ProbeFailed, Shape, choose_waiting, shape_of
from gateway.backends.local.waiting import variables


def test_nothing_of_it_imports_torch():
    code = "import gateway.backends.local.waiting, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_probe_that_fails_leaves_things_as_they_are(tmp_path):
    def probe(shape, threads, environment, processes):
        raise ProbeFailed("gone")

    choice = choose_waiting("demo", threads=None, environment={}, cache_dir=tmp_path, probe=probe)

    assert choice.value == "spin"
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("name", waiting.VARIABLES)
def test_the_users_own_setting_wins(monkeypatch, name):
    monkeypatch.setattr("gateway.backends.local.waiting.matters", lambda *_: True)

    assert variables({"waiting": "passive"}, {name: "x"}, lambda: None) == {}
    assert variables({"waiting": "passive"}, {}, lambda: None) == {"OMP_WAIT_POLICY": "passive"}


def test_auto_sets_what_was_chosen(monkeypatch):
    monkeypatch.setattr("gateway.backends.local.waiting.matters", lambda *_: True)
    monkeypatch.setattr(
        "gateway.backends.local.waiting.choose_waiting",
        lambda *_, **__: Choice("waiting", "passive", {}),
    )

    assert variables({}, {}, lambda: None) == {"OMP_WAIT_POLICY": "passive"}


def test_the_shape_comes_from_the_model_folder(tmp_path):
    config = {"hidden_size": 64, "intermediate_size": 99999, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert shape_of(str(tmp_path)) == Shape(64, 4096, 2)
    assert shape_of("demo") == Shape()
