"""Fixtures: a real server in its own thread; the framework's test clients buffer streams."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn

from gateway.app import create_app
from gateway.audit.query import DecisionReader, Entry
from gateway.config import AuditConfig, AuthConfig, BackendConfig, GatewayConfig, ServerConfig

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


class LiveServer:
    """A gateway on a port of 127.0.0.1, in a thread."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.url = ""
        # One client, without certificates to load: making one takes longer than most tests.
        self._client = httpx.Client(verify=False, timeout=20)
        self._server: uvicorn.Server | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LiveServer:
        self._thread.start()
        self._ready.wait(20)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self.stop()

    def stop(self) -> None:
        """Shut down as a signal would, and wait."""
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        """POST an object as JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client.post(self.url + path, content=content, headers=names)

    def get(self, path: str, **headers: str) -> httpx.Response:
        """GET a path."""
        return self._client.get(self.url + path, headers=headers)

    def entry(self, decision_id: str, *, seconds: float = 5.0) -> Entry:
        """The records of a decision, once its outcome is there."""
        deadline = time.monotonic() + seconds
        while True:
            entry = asyncio.run(self._read(decision_id))
            if entry is not None and entry.outcome is not None:
                return entry
            assert time.monotonic() < deadline, f"no outcome for {decision_id}: {entry}"
            time.sleep(0.02)

    def last(self, *, seconds: float = 5.0) -> Entry:
        """The newest entry, once its outcome is there."""
        deadline = time.monotonic() + seconds
        while not (entries := asyncio.run(self._list())):
            assert time.monotonic() < deadline, "nothing was decided"
            time.sleep(0.02)
        return self.entry(entries[0].decision.decision_id, seconds=seconds)

    def entries(self) -> tuple[Entry, ...]:
        """All entries, newest first."""
        return asyncio.run(self._list())

    async def _read(self, decision_id: str) -> Entry | None:
        reader = await DecisionReader.open(self.config.audit.url)
        try:
            return await reader.get(decision_id)
        finally:
            await reader.aclose()

    async def _list(self) -> tuple[Entry, ...]:
        reader = await DecisionReader.open(self.config.audit.url)
        try:
            return (await reader.list()).entries
        finally:
            await reader.aclose()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        app = create_app(self.config)
        async with app.lifespan():
            options = uvicorn.Config(
                app, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=1
            )
            self._server = uvicorn.Server(options)
            serving = asyncio.create_task(self._server.serve())
            while not self._server.started and not serving.done():  # noqa: ASYNC110 - not ours
                await asyncio.sleep(0.005)
            port = self._server.servers[0].sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self._ready.set()
            await serving


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
            audit=AuditConfig(f"sqlite+aiosqlite:///{folder / 'decisions.db'}"),
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
