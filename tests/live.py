"""A real server in a thread of its own; the framework's test clients buffer streams."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import msgspec
import uvicorn

from gateway.app import create_app
from gateway.audit.query import DecisionReader, Entry
from gateway.cli.http import server_options
from gateway.config import GatewayConfig
from tests.sse import check


class LiveServer:
    """A gateway on a port of 127.0.0.1, in a thread."""

    def __init__(self, config: GatewayConfig, *, seconds: float = 20.0) -> None:
        """``seconds``: how long the start and a request may take."""
        self.config = config
        self._seconds = seconds
        self.url = ""
        # One client, without certificates to load: making one takes longer than most tests.
        self._client = httpx.Client(verify=False, timeout=self._seconds)
        self._server: uvicorn.Server | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LiveServer:
        self._thread.start()
        self._ready.wait(self._seconds)
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
        self._thread.join(self._seconds)
        assert not self._thread.is_alive()

    def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        """POST an object as JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self._client.post(self.url + path, content=content, headers=names)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            # A model of random weights says bytes that are no characters.
            check(response.content, whole=not _is_random(body))
        return response

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
            options = server_options(app, self.config.server)
            options.port, options.timeout_graceful_shutdown = 0, 1
            self._server = uvicorn.Server(options)
            serving = asyncio.create_task(self._server.serve())
            while not self._server.started and not serving.done():  # noqa: ASYNC110 - not ours
                await asyncio.sleep(0.005)
            port = self._server.servers[0].sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self._ready.set()
            await serving


def _is_random(body: Any) -> bool:
    return isinstance(body, dict) and body.get("model") == "tiny"
