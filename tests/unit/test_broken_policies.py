"""What is said of each file of tests/data/broken_policies, word for word and place for place."""

from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.routing.policy import load

FILES = sorted((Path(__file__).parents[1] / "data" / "broken_policies").glob("*.yaml"))


def test_there_are_broken_policies() -> None:
    assert len(FILES) >= 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_broken_policy_is_explained_in_full(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(path)

    said = caught.value.with_sources().replace(f"{path.parent}/", "") + "\n"
    assert said == path.with_suffix(".txt").read_text(encoding="utf-8")
