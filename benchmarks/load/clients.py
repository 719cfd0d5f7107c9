"""The clients: one request after another, as many as go, and streams side by side.

They speak HTTP over plain sockets: a client library would take more time than what is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.servers import Server
from gateway.experiments.connection import Connection

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LAG_SECONDS = 0.02
PROMPT = "Write a function that adds two numbers, and say in one sentence how it works."


@dataclass(frozen=True)
class Latency:
    """One request after another, in seconds."""

    requests: int
    p50: float
    p99: float
    worst: float


@dataclass(frozen=True)
class Rate:
    """As many as go, ``clients`` at a time."""

    clients: int
    requests: int
    per_second: float
    cpu_seconds_per_request: float
    """Of the server alone: what one core could serve is its inverse."""


@dataclass(frozen=True)
class Streams:
    """Streams side by side for a while."""

    streams: int
    seconds: float
    answers: int
    failed: int
    health_p50: float
    """Of ``/healthz`` meanwhile: how late the server's event loop is for others."""
    health_worst: float
    memory_mb_before: float
    memory_mb_after: float


class Client:
    """One connection that is kept."""

    def __init__(self, server: Server, key: str) -> None:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._connection = Connection(server.url, headers)

    async def ask(self, *, stream: bool = False) -> int:
        """Send the request and read all of its answer; returns the status."""
        message = {"role": "user", "content": PROMPT}
        body = json.dumps({"model": "scripted", "messages": [message], "stream": stream})
        head, _ = await self._connection.read("POST", "/v1/chat/completions", body.encode())
        return head.status

    async def get(self, path: str) -> int:
        """Read a path; returns the status."""
        head, _ = await self._connection.read("GET", path)
        return head.status

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


async def one_by_one(server: Server, key: str, count: int, *, warm_up: int = 50) -> Latency:
    """``count`` requests, one after another."""
    times = []
    with closing(Client(server, key)) as client:
        for _ in range(warm_up + count):
            began = time.perf_counter()
            _check(await client.ask())
            times.append(time.perf_counter() - began)
    kept = sorted(times[warm_up:])
    return Latency(count, statistics.median(kept), _percentile(kept, 0.99), kept[-1])


async def at_once(server: Server, key: str, clients: int, seconds: float) -> Rate:
    """Requests from so many clients, each as fast as it is answered."""
    count = 0
    end = time.perf_counter() + seconds

    async def run() -> None:
        nonlocal count
        with closing(Client(server, key)) as client:
            while time.perf_counter() < end:
                _check(await client.ask())
                count += 1

    before, began = cpu_seconds(server.process), time.perf_counter()
    await asyncio.gather(*(run() for _ in range(clients)))
    elapsed = time.perf_counter() - began
    used = cpu_seconds(server.process) - before
    return Rate(clients, count, count / elapsed, used / max(count, 1))


async def streams(server: Server, key: str, count: int, seconds: float) -> Streams:
    """So many streams at any time, and how the server is for others meanwhile."""
    answers = failed = 0
    end = time.perf_counter() + seconds

    async def run() -> None:
        nonlocal answers, failed
        with closing(Client(server, key)) as client:
            while time.perf_counter() < end:
                try:
                    failed += await client.ask(stream=True) != 200
                    answers += 1
                except OSError:
                    failed += 1
                    client.close()

    before = memory_mb(server.process)
    lags: list[float] = []
    watching = asyncio.create_task(_watch(server, lags))
    await asyncio.gather(*(run() for _ in range(count)))
    watching.cancel()
    await asyncio.wait([watching])
    lags.sort()
    return Streams(
        count,
        seconds,
        answers,
        failed,
        statistics.median(lags) if lags else 0.0,
        lags[-1] if lags else 0.0,
        before,
        memory_mb(server.process),
    )


async def _watch(server: Server, lags: list[float]) -> None:
    with closing(Client(server, "")) as client:
        while True:
            began = time.perf_counter()
            await client.get("/healthz")
            lags.append(time.perf_counter() - began)
            await asyncio.sleep(LAG_SECONDS)


def cpu_seconds(process: int) -> float:
    """Processor time that a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(process: int) -> float:
    """What a process has resident, in millions of bytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_BYTES / 1e6


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _check(status: int) -> None:
    if status != 200:
        raise RuntimeError(f"a request was answered with {status}")
