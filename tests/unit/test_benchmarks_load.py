"""The load benchmark's clients count what they sent, and its table shows what they counted."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.load import clients
from benchmarks.load.__main__ import table
from benchmarks.load.servers import Server


@pytest.fixture
def measured(server: Any) -> Server:
    return Server(server.url, os.getpid())


async def test_each_request_is_answered_whole(measured: Server) -> None:
    latency = await clients.one_by_one(measured, "", 5, warm_up=1)
    rate = await clients.at_once(measured, "", 2, 0.2)
    streams = await clients.streams(measured, "", 3, 0.2)

    assert latency.requests == 5
    assert 0 < latency.p50 <= latency.p99 <= latency.worst
    assert rate.requests >= 2
    assert (streams.failed, streams.streams) == (0, 3)
    assert streams.answers >= 3

    found = {
        "gateway": {"latency": asdict(latency), "rate": asdict(rate), "streams": asdict(streams)}
    }
    row = table(found).splitlines()[-1]
    assert row.startswith(f"| gateway | {1e3 * latency.p50:.2f} | ")
    assert len(row.split("|")) == len(table(found).splitlines()[0].split("|"))


async def test_a_request_that_fails_ends_the_measurement(server: Any) -> None:
    class Wrong(clients.Client):
        async def ask(self, *, stream: bool = False) -> int:
            return await self.get("/nowhere")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "Client", Wrong)
        with pytest.raises(RuntimeError, match="404"):
            await clients.one_by_one(Server(server.url, os.getpid()), "", 1)
