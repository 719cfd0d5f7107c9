"""`GatewayPlugin`: puts Draftgate on a Litestar application, its own or somebody else's.

The one place where objects are built from the configuration. It adds a router, a lifespan and a
command group, and must touch no other setting of its host.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from click import Group
from litestar import Litestar
from litestar.config.app import AppConfig
from litestar.plugins import CLIPlugin, InitPlugin

from gateway import extensions
from gateway.access.building import build_directory
from gateway.access.directory import Directory
from gateway.access.limiter import Limiter
from gateway.api import build_router
from gateway.archive import Archive
from gateway.assurance import Assured
from gateway.audit.anchor import Anchor
from gateway.audit.keys import keyring
from gateway.audit.ledger import Pace
from gateway.audit.query import DecisionReader
from gateway.audit.retention import Limits
from gateway.audit.store import DecisionStore
from gateway.backends.base import Backend, Checker
from gateway.classification.base import Classifier, classify
from gateway.classification.contract import SHIPPED_CONTRACT, Contract, read_contract
from gateway.classification.drift import ScoreWindow
from gateway.config import (
    SIGNING_VARIABLE,
    AuditConfig,
    GatewayConfig,
    complete,
    key_secret,
    load,
    signing_secrets,
)
from gateway.errors import ConfigError, Problem, Unavailable
from gateway.keeper import PolicyKeeper, summary
from gateway.log import Log, build_log
from gateway.routing import files
from gateway.routing.active import ActivePolicy
from gateway.routing.policy import Policy
from gateway.routing.vetting import Vetting
from gateway.service import Gateway
from gateway.telemetry import Telemetry
from gateway.types import ChatRequest, Message, Signals

WARM_UP = ChatRequest(model="", messages=(Message("user", "Is anybody there?"),))
WARM_UP_SECONDS = 60.0


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

        async def provide_directory() -> Directory:
            return self._now().directory

        router = build_router(
            provide_gateway,
            provide_keeper,
            provide_archive,
            provide_directory,
            limiter=self._limiter,
            server=self._config.server,
            protect_metrics=self._config.auth.protect_metrics,
            log=build_log(self._config.log.level, json=self._config.log.json),
            path=self._path,
        )
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


class Running(NamedTuple):
    """What runs while the host runs."""

    gateway: Gateway
    keeper: PolicyKeeper
    archive: Archive
    directory: Directory


def check(policy: Policy, backends: Mapping[str, Backend]) -> None:
    """Raise ConfigError for the first decision of ``policy`` that a backend in reach cannot obey."""
    for decision in policy.decisions:
        for name, backend in backends.items():
            if decision.backend not in (None, name) or not isinstance(backend, Checker):
                continue
            try:
                backend.check(decision)
            except ConfigError as error:
                place = f"{policy.path}: rule {decision.rule!r} on backend {name!r}"
                raise ConfigError(
                    [Problem(p.message, path=place, hint=p.hint) for p in error.problems]
                ) from error


@asynccontextmanager
async def running(config: GatewayConfig, limiter: Limiter | None = None) -> AsyncIterator[Running]:
    """A `Gateway` built from ``config`` and the keeper of its policy, closed at the end.

    Cheap things first, so that a wrong file is reported before a model is loaded. What had been
    started is closed again when a later part fails. Raises ConfigError or a GatewayError.
    """
    config = complete(config)
    if config.policy is None:
        raise ValueError("the configuration is not complete")
    log = build_log(config.log.level, json=config.log.json)
    directory = build_directory(config.auth, key_secret(), log)
    await asyncio.to_thread(directory.refresh)
    classifiers: dict[str, Classifier] = {
        name: extensions.build("classifiers", name, {}) for name in config.classifiers
    }
    contract = _contract(config)
    hashes = [classifier.content_hash for classifier in classifiers.values()]

    def classify_now(request: ChatRequest) -> Signals:
        return asyncio.run(classify(request, classifiers, timeout_seconds=WARM_UP_SECONDS))

    vetting = Vetting(backends=config.backends, classify=classify_now)
    (policy, warning), snapshot = await asyncio.to_thread(
        files.settled, config.policy, partial(_first, vetting, config.policy)
    )
    active = ActivePolicy(policy)
    active.warning = warning
    # Some read their data on first use; the first caller should not have to wait for that.
    await classify(WARM_UP, classifiers, timeout_seconds=WARM_UP_SECONDS)
    async with AsyncExitStack() as started:
        audit = await _open_log(config.audit, log)
        started.push_async_callback(audit.aclose)
        reader = await DecisionReader.open(config.audit.url)
        started.push_async_callback(reader.aclose)
        backends: dict[str, Backend] = {}
        for name, section in config.backends.items():
            # In a thread: loading a model must not stop the loop from hearing a signal.
            backend: Backend = await asyncio.to_thread(
                extensions.build, "backends", section.type, section.options, name=name
            )
            started.push_async_callback(backend.aclose)
            backends[name] = backend
        check(active.current, backends)
        models = (model.id for backend in backends.values() for model in backend.models)
        drift = None if contract is None else ScoreWindow(contract)
        telemetry = Telemetry(models, log=log, drift=drift)
        keeper = PolicyKeeper(
            config.policy,
            active,
            snapshot=snapshot,
            vetting=vetting,
            obeyable=partial(check, backends=backends),
            changes=audit,
            versions=reader,
            telemetry=telemetry,
            log=log,
        )
        await keeper.start()
        gateway = Gateway(
            backends=backends,
            policy=active,
            classifiers=classifiers,
            audit=audit,
            telemetry=telemetry,
            log=log,
            audit_required=config.audit.required,
            classifier_timeout_seconds=config.classifier_timeout_seconds,
            assured=Assured(contract, hashes=hashes),
            request_seconds=config.server.request_seconds,
            spend=None if limiter is None else limiter.spend,
        )
        started.pop_all()
        started.push_async_callback(reader.aclose)
        started.push_async_callback(gateway.aclose)
        watching = asyncio.create_task(keeper.watch(config.policy_watch_seconds))
        started.callback(watching.cancel)
        reading = asyncio.create_task(directory.watch(config.auth.store_watch_seconds))
        started.callback(reading.cancel)
        yield Running(gateway, keeper, Archive(reader, audit), directory)


def _contract(config: GatewayConfig) -> Contract | None:
    """The contract that is configured, else the shipped one where the shipped classifier serves."""
    if config.classification.contract is not None:
        return read_contract(config.classification.contract)
    return read_contract(SHIPPED_CONTRACT) if "domain" in config.classifiers else None


async def _open_log(audit: AuditConfig, log: Log) -> DecisionStore:
    """The decision log. Raises ConfigError or AuditUnavailable."""
    keys = keyring(signing_secrets(audit))
    if not keys:
        log.warning("log_not_signed", hint=f"set {SIGNING_VARIABLE}, or audit.keys")
    return await DecisionStore.open(
        audit.url,
        keys=keys,
        anchor=None if audit.anchor is None else Anchor(audit.anchor),
        pace=Pace(audit.checkpoint_rows, audit.checkpoint_seconds),
        limits=Limits.of(audit.retention.days, audit.retention.max_mb),
        log=log,
    )


def _first(vetting: Vetting, path: Path) -> tuple[Policy, str | None]:
    """The policy to start with and what is wrong with its tests, as no earlier one could stay.

    A failing case is an example that may be out of date; a false statement is a broken promise.
    Raises ConfigError.
    """
    policy = vetting.load(path)
    if refuted := vetting.refuted(policy):
        raise ConfigError(refuted)
    try:
        failures = vetting.failures(policy)
    except ConfigError as error:
        return policy, summary(error)
    return policy, summary(ConfigError(failures)) if failures else None
