"""`DrainingServer`: uvicorn that stops in words: first not ready, then no new work, then closed."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from gateway.config import ServerConfig
from gateway.service import Gateway

_LOOK_SECONDS = 0.05


class DrainingServer(uvicorn.Server):
    """Ends answers in words when time is up, and then leaves the rest to us."""

    def __init__(self, options: uvicorn.Config, gateway: Gateway, server: ServerConfig) -> None:
        super().__init__(options)
        self._gateway = gateway
        self._patience = server.shutdown_seconds
        self._drain = server.drain_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what is new while answers in progress end; after a while, end each with an error.

        Until then the port is open, so that a balancer sees that nothing is ready here, and what it
        still sends is told to go elsewhere rather than refused without a word.
        """
        self._gateway.drain()
        timer = asyncio.get_running_loop().call_later(self._patience, self._gateway.stop)
        try:
            await self._wait()
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    async def _wait(self) -> None:
        """Until nothing runs, and at least as long as was asked for; not after a second SIGINT."""
        drained = asyncio.gather(self._gateway.drained(), asyncio.sleep(self._drain))
        try:
            while not self.force_exit:
                done, _ = await asyncio.wait([drained], timeout=_LOOK_SECONDS)
                if done:
                    return
        finally:
            drained.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM; a second SIGINT does not wait for answers in progress.

        uvicorn's own would raise the signal again at the end, and skip our clean-up.
        """
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
