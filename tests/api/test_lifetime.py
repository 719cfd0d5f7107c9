"""An answer that nobody will get does not go on, however its request came to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from litestar import Litestar, Response
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from gateway.audit.query import DecisionReader
from gateway.config import GatewayConfig
from gateway.plugin import GatewayPlugin
from gateway.service import Gateway
from gateway.types import FinishReason

Make = Callable[..., GatewayConfig]
SLOW = {"chunk_seconds": 0.05}


class Host:
    """An application of somebody else with a gateway on it, called without a server."""

    def __init__(self, config: GatewayConfig, **options: Any) -> None:
        self._plugin = GatewayPlugin(config)
        self._url = config.audit.url
        self.app = Litestar(plugins=[self._plugin], logging_config=None, **options)

    async def ask(self, *, stream: bool) -> list[Any]:
        """Post a request for a long answer; returns the messages that were sent."""
        asked = {"role": "user", "content": "long"}
        body = msgspec.json.encode({"model": "scripted", "messages": [asked], "stream": stream})
        sent: list[Any] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if not waiting:
                await asyncio.Event().wait()
            return waiting.pop()

        async def keep(message: Message) -> None:
            sent.append(message)

        scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"x")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await self.app(scope, receive, keep)
        return sent

    async def is_idle(self, *, seconds: float = 3.0) -> bool:
        """Whether the backend comes to rest well before the answer would be complete."""
        gateway = await self._plugin.gateway()
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            status = gateway.status().backends["demo"]
            if (status.running, status.queued) == (0, 0):
                return True
            await asyncio.sleep(0.01)
        return False

    async def endings(self) -> list[tuple[FinishReason, ...]]:
        """How each decided request has ended, on record."""
        reader = await DecisionReader.open(self._url)
        try:
            for _ in range(200):
                entries = (await reader.list()).entries
                if all(entry.outcome is not None for entry in entries):
                    break
                await asyncio.sleep(0.02)
            return [entry.outcome.finish_reasons for entry in entries if entry.outcome]
        finally:
            await reader.aclose()


async def fail_after(_: Response[Any]) -> Response[Any]:
    raise ZeroDivisionError("the host's own trouble")


async def fail_before_send(message: Message, _: Scope) -> None:
    if message["type"] == "http.response.start" and message["status"] == 200:
        raise ZeroDivisionError("the host's own trouble")


async def instead(_: Response[Any]) -> Response[Any]:
    return Response({"host": "answers itself"})


def failing_send(app: ASGIApp) -> ASGIApp:
    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def broken(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise OSError("the connection is gone")
            await send(message)

        await app(scope, receive, broken)

    return run


@pytest.mark.parametrize(
    "options",
    [
        {"after_request": fail_after},
        {"before_send": [fail_before_send]},
        {"after_request": instead},
        {"middleware": [failing_send]},
    ],
    ids=["after_request fails", "before_send fails", "after_request replaces", "sending fails"],
)
async def test_a_stream_that_is_never_sent_is_cancelled(
    make_config: Make, options: dict[str, Any]
) -> None:
    host = Host(make_config(SLOW), **options)
    async with host.app.lifespan():
        answered = asyncio.create_task(host.ask(stream=True))
        await asyncio.wait([answered])
        _ = answered.exception()

        assert await host.is_idle()
        assert await host.endings() == [(FinishReason.CANCELLED,)]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_cancelled_just_when_its_answer_begins_leaves_nothing_running(
    make_config: Make, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    respond = Gateway.respond
    asking: list[asyncio.Task[Any]] = []

    async def and_cancel(self: Gateway, *given: Any, **named: Any) -> Any:
        reply = await respond(self, *given, **named)
        asking[0].cancel()
        return reply

    monkeypatch.setattr(Gateway, "respond", and_cancel)
    host = Host(make_config(SLOW))
    async with host.app.lifespan():
        asking.append(asyncio.create_task(host.ask(stream=stream)))
        await asyncio.wait(asking)

        assert asking[0].cancelled()
        assert await host.is_idle()
        assert await host.endings() == [(FinishReason.CANCELLED,)]


async def test_a_request_cancelled_at_any_time_leaves_nothing_running(make_config: Make) -> None:
    host = Host(make_config(SLOW))
    async with host.app.lifespan():
        for delay in range(16):
            asking = asyncio.create_task(host.ask(stream=delay % 2 == 0))
            await asyncio.sleep(delay * 0.003)
            asking.cancel()
            await asyncio.wait([asking])

        assert await host.is_idle()
        assert set(await host.endings()) == {(FinishReason.CANCELLED,)}


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_sent_whole_is_not_cancelled(
    make_config: Make, stream: bool
) -> None:
    host = Host(make_config())
    async with host.app.lifespan():
        sent = await host.ask(stream=stream)

        assert sent[0]["status"] == 200
        assert await host.endings() == [(FinishReason.STOP,)]
