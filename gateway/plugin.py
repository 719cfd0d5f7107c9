"""`GatewayPlugin`: puts Draftgate on a Litestar application, its own or somebody else's.

It adds a router, a lifespan and a command group, and must touch no other setting of its host.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import entry_points

from click import Group
from litestar import Litestar
from litestar.config.app import AppConfig
from litestar.plugins import CLIPlugin, InitPlugin

from gateway.access.directory import Directory
from gateway.access.limiter import Limiter
from gateway.api import build_router
from gateway.archive import Archive
from gateway.config import (
    GatewayConfig,
    complete,
    load,
)
from gateway.dashboard import build_dashboard
from gateway.errors import Unavailable
from gateway.evidence.watch import Watch
from gateway.keeper import PolicyKeeper
from gateway.log import build_log
from gateway.runtime import Running, running
from gateway.service import Gateway


class GatewayPlugin(InitPlugin, CLIPlugin):
    """Mounts the gateway's routes under ``path`` and runs one `Gateway` while the host runs."""

    def __init__(self, config: GatewayConfig | None = None, *, path: str = "/") -> None:
        self._config = load() if config is None else complete(config)
        self._path = path
        self._limiter = Limiter(self._config.auth.quota)
        self._running: Running | None = None

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add one router and one lifespan."""

        # A closure: the framework copies what it is given, and a bound method with its object.
        async def provide_gateway() -> Gateway:
            return await self.gateway()

        async def provide_keeper() -> PolicyKeeper:
            return await self.keeper()

        async def provide_archive() -> Archive:
            return self._now().archive

        async def provide_watch() -> Watch:
            return self._now().watching

        async def provide_directory() -> Directory:
            return self._now().directory

        router = build_router(
            provide_gateway,
            provide_keeper,
            provide_archive,
            provide_watch,
            provide_directory,
            limiter=self._limiter,
            server=self._config.server,
            protect_metrics=self._config.auth.protect_metrics,
            log=build_log(self._config.log.level, json=self._config.log.json),
            path=self._path,
        )
        if self._config.dashboard == "on":
            router.register(build_dashboard())
        app_config.route_handlers.append(router)
        app_config.lifespan = [*app_config.lifespan, self._lifespan]
        return app_config

    def on_cli_init(self, cli: Group) -> None:
        """Add the ``draftgate`` commands as ``gateway`` to the host's command line."""
        points = entry_points(group="console_scripts", name="draftgate")
        for point in points:
            cli.add_command(point.load(), name="gateway")

    async def gateway(self) -> Gateway:
        """The running gateway. Raises Unavailable before the host's start and after its end."""
        return self._now().gateway

    async def keeper(self) -> PolicyKeeper:
        """Its policy's keeper. Raises Unavailable like `gateway`."""
        return self._now().keeper

    def _now(self) -> Running:
        if self._running is None:
            raise Unavailable("The gateway is not running.", retry_after=1)
        return self._running

    @asynccontextmanager
    async def _lifespan(self, _: Litestar) -> AsyncIterator[None]:
        async with running(self._config, self._limiter) as self._running:
            try:
                yield
            finally:
                self._running = None
