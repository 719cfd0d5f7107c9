from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _signing_key() -> Iterator[None]:
    """A gateway as an operator runs it: without a key its first line would be the warning of that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTGATE_AUDIT_KEY", "a key for tests alone, of enough characters")
        yield
