"""A gateway with a day's log, and a headless Chromium that looks at its dashboard."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import AuthConfig, EvidenceConfig, GatewayConfig, KeyConfig
from gateway.routing.policy import load
from tests.dashboard.seeding import seed
from tests.live import LiveServer

ADMIN, ANN = "sk-admin", "sk-ann"
AUTH = AuthConfig(
    tuple(
        KeyConfig(name, hashlib.sha256(key.encode()).hexdigest(), admin=key == ADMIN)
        for name, key in (("ada", ADMIN), ("ann", ANN))
    )
)
SIGNING = "a key for tests alone, of enough characters"
NUMBER = 240


@pytest.fixture(scope="package", autouse=True)
def _signing_key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTGATE_AUDIT_KEY", SIGNING)
        yield


@pytest.fixture(scope="package")
def seeded(make_config: Callable[..., GatewayConfig]) -> Iterator[LiveServer]:
    """A server with a day's log; its tests change nothing that others read."""
    config = make_config(
        {"chunk_seconds": 0.005}, auth=AUTH, evidence=EvidenceConfig(poll_seconds=0.05)
    )
    assert config.policy is not None
    policy_hash = load(config.policy).hash
    seed(config.audit.url, policy_hash, number=NUMBER, now=time.time(), key=SIGNING.encode())
    with LiveServer(config) as live:
        yield live


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, as the system has it or as playwright has fetched it.

    It has an event loop in this very thread for as long as it is there: no other module may meet that.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        path = os.environ.get("DRAFTGATE_CHROMIUM") or next(
            filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
        )
        if path is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("there is no Chromium: `make test-dashboard` fetches one")
        # Without its sandbox, as containers and CI do not let it make one; it sees our pages alone.
        chromium = playwright.chromium.launch(executable_path=path, chromium_sandbox=False)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of the pages go: ``$DRAFTGATE_SCREENSHOTS``, else a folder of pytest's."""
    given = os.environ.get("DRAFTGATE_SCREENSHOTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
