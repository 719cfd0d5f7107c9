"""Fixtures: live servers, and a model small enough to build on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from os import environ, getpid
from pathlib import Path
from typing import Any

import pytest

from gateway.config import AuditConfig, AuthConfig, BackendConfig, GatewayConfig, ServerConfig
from tests.databases import LogDatabase, PostgresqlServer, SqliteDatabase
from tests.live import LiveServer
from tests.tiny import build_tiny_model

POLICY = """\
version: 1
name: tests
rules:
  - {id: medical, ban: [speculative, hybrid], when: {keyword: [dose]}}
  - {id: forbidden, deny: This is not answered here., when: {keyword: [forbidden]}}
  - {id: code, when: {keyword: [function]}, decide: {mode: speculative}}
  - id: support
    when: {keyword: [refund]}
    decide: {mode: hybrid, standard_first: 10, content_tokens: standard}
  - id: modest
    when: {keyword: [modest]}
    decide: {mode: standard, max_temperature: 0.5, max_tokens: 3}
"""
REPLIES = {
    "naïve": "Ein naïver Gruß: 안녕하세요 🙂 fin.",
    "long": " ".join(f"word{number}" for number in range(400)),
    "silence": "",
    "": "The answer is short.",
}


@pytest.fixture(scope="session")
def make_config(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., GatewayConfig]:
    """Builds a configuration with a scripted backend, its own log, and the policy of the tests."""

    def make(
        options: Mapping[str, Any] | None = None,
        *,
        policy: str = POLICY,
        auth: AuthConfig | None = None,
        server: ServerConfig | None = None,
        **other: Any,
    ) -> GatewayConfig:
        folder: Path = tmp_path_factory.mktemp("gateway")
        path = folder / "policy.yaml"
        path.write_text(policy)
        options = {"replies": REPLIES, **(options or {})}
        return GatewayConfig(
            backends={"demo": BackendConfig("scripted", options)},
            policy=path,
            classifiers=(),
            audit=AuditConfig(f"sqlite:///{folder / 'decisions.db'}"),
            auth=auth or AuthConfig(),
            server=server or ServerConfig(),
            **other,
        )

    return make


@pytest.fixture(scope="session")
def server(make_config: Callable[..., GatewayConfig]) -> Iterator[LiveServer]:
    """A server with the default script, shared by all tests that change nothing."""
    with LiveServer(make_config()) as live:
        yield live


@pytest.fixture(scope="session")
def launch() -> type[LiveServer]:
    """The class of the servers, for fixtures that share one among the tests of a module."""
    return LiveServer


@pytest.fixture
def start(make_config: Callable[..., GatewayConfig]) -> Iterator[Callable[..., LiveServer]]:
    """Starts a server of the test's own; takes what `make_config` takes."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(LiveServer(make_config(*args, **kwargs)))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama of 2 layers and a byte-level tokenizer: loads in no time."""
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A real server, started once for all processes of the tests."""
    server = PostgresqlServer(environ.get("PYTEST_XDIST_TESTRUNUID", str(getpid())))
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def log_database(request: pytest.FixtureRequest, tmp_path: Path) -> LogDatabase:
    """An empty database, of each kind that a log can be in."""
    if request.param == "sqlite":
        return SqliteDatabase(tmp_path / "decisions.db")
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    return server.database()
