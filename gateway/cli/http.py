"""How the server speaks HTTP: uvicorn's settings, and no patience with those who never ask."""

from __future__ import annotations

import asyncio
import math
from functools import partial

import uvicorn
from litestar import Litestar
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.config import ServerConfig

_MAX_HEAD_BYTES = 64 * 1024


def server_options(app: Litestar, server: ServerConfig) -> uvicorn.Config:
    """The settings of a server for ``app``, whose lifespan is entered elsewhere."""
    return uvicorn.Config(
        app,
        port=server.port,
        http=partial(PatientProtocol, head_seconds=server.head_seconds),  # type: ignore[arg-type]
        ws="none",
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        limit_concurrency=server.max_connections,
        lifespan="off",  # entered by whoever serves, so that its errors are its own to show
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(server.shutdown_seconds) + 5,
    )


class PatientProtocol(H11Protocol):
    """Closes a connection whose client takes too long to say what it wants.

    uvicorn's own timer runs only between two requests, not before the first nor within a head.
    """

    def __init__(self, *given: object, head_seconds: float, **named: object) -> None:
        super().__init__(*given, **named)  # type: ignore[arg-type]
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request from now on."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Go on waiting where this was only a part of a head."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing."""
        super().connection_lost(exc)
        self._forget()

    def _watch(self) -> None:
        asks = self.cycle is None or self.cycle.response_complete
        if not asks:
            self._forget()
        elif self._head_timer is None:
            # Not anew at each byte: one that trickles in must not keep the connection for ever.
            self._head_timer = self.loop.call_later(self._head_seconds, self._close)

    def _forget(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
