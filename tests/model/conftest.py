"""The demo model, loaded once per run and shared by every test that needs real weights."""

import pytest

from decoders.loader import LoadedModel, load
from gateway import config


@pytest.fixture(scope="session")
def demo() -> LoadedModel:
    """SmolLM2-135M-Instruct in float32, fetched into the cache on first use."""
    return load(
        "demo", dtype="float32", device="cpu", max_length=2048, cache_dir=config.load().cache
    )
