"""`Running`: every object of a gateway, built from its section of the configuration, and closed again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gateway import extensions
from gateway.access.building import build_directory
from gateway.access.directory import Directory
from gateway.access.limiter import Limiter
from gateway.archive import Archive
from gateway.assurance import Assured
from gateway.audit.anchor import Anchor
from gateway.audit.digests import Digests
from gateway.audit.keys import Keyring, keyring
from gateway.audit.ledger import Pace
from gateway.audit.query import DecisionReader
from gateway.audit.retention import Limits
from gateway.audit.store import DecisionStore
from gateway.audit.vault import Vault, open_vault
from gateway.backends.base import Backend, Checker, Starter
from gateway.capture import Capture
from gateway.classification.base import Classifier, classify
from gateway.classification.contract import SHIPPED_CONTRACT, Contract, read_contract
from gateway.classification.drift import ScoreWindow
from gateway.config import (
    SIGNING_VARIABLE,
    TEXT_VARIABLE,
    AuditConfig,
    GatewayConfig,
    OtlpConfig,
    TextConfig,
    complete,
    key_secret,
    otlp_headers,
    signing_secrets,
    text_secrets,
    webhook_secret,
)
from gateway.errors import ConfigError, NotFound, Problem
from gateway.evidence.alarm import Bounds
from gateway.evidence.follower import Follower
from gateway.evidence.gauges import Gauges
from gateway.evidence.journal import Journal
from gateway.evidence.watch import Watch
from gateway.evidence.webhook import Webhook
from gateway.keeper import PolicyKeeper, summary
from gateway.log import Log, build_log
from gateway.masking import Masker
from gateway.routing import files
from gateway.routing.active import ActivePolicy
from gateway.routing.policy import Policy
from gateway.routing.vetting import Vetting
from gateway.service import Gateway
from gateway.shadows import Shadows
from gateway.telemetry import Telemetry
from gateway.types import ChatRequest, Message, Signals

if TYPE_CHECKING:
    from gateway.otlp import OtlpExporter

WARM_UP = ChatRequest(model="", messages=(Message("user", "Is anybody there?"),))
WARM_UP_SECONDS = 60.0


class Running(NamedTuple):
    """What runs while the host runs."""

    gateway: Gateway
    keeper: PolicyKeeper
    archive: Archive
    directory: Directory
    watch: Watch | None
    """None where no evidence is gathered."""

    @property
    def watching(self) -> Watch:
        """Who gathers evidence. Raises NotFound where nobody does."""
        if self.watch is None:
            raise NotFound("No evidence is gathered here: evidence.enabled is false.")
        return self.watch


def check(policy: Policy, backends: Mapping[str, Backend], *, has_vault: bool = False) -> None:
    """Raise ConfigError for the first decision of ``policy`` that cannot be obeyed: by a backend in
    reach, or because texts that are to be kept cannot be locked."""
    keeps = next((each for each in policy.decisions if each.capture == "text"), None)
    if keeps is not None and not has_vault:
        raise _no_vault(f"{policy.path}: rule {keeps.rule!r}")
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
    vault, maskers = _for_texts(config.audit)
    classifiers: dict[str, Classifier] = {
        name: extensions.build("classifiers", name, {}) for name in config.classifiers
    }
    contract = _contract(config)

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
    # What sends ends last: the gateway's own end finishes requests.
    async with (
        _exporting(config.telemetry.otlp, log) as exporter,
        AsyncExitStack() as started,
    ):
        keys = keyring(signing_secrets(config.audit))
        audit = await _open_log(config.audit, keys, log)
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
        obeyable = partial(check, backends=backends, has_vault=vault is not None)
        obeyable(active.current)
        models = (model.id for backend in backends.values() for model in backend.models)
        telemetry = Telemetry(
            models,
            log=log,
            drift=None if contract is None else ScoreWindow(contract),
            exporter=exporter,
        )
        await _start_backends(backends, log, telemetry)
        keeper = PolicyKeeper(
            config.policy,
            active,
            snapshot=snapshot,
            vetting=vetting,
            obeyable=obeyable,
            changes=audit,
            versions=reader,
            telemetry=telemetry,
            log=log,
        )
        await keeper.start()
        watch = await _start_watch(config, audit, telemetry, log, started)
        gateway = Gateway(
            backends=backends,
            policy=active,
            classifiers=classifiers,
            audit=audit,
            telemetry=telemetry,
            log=log,
            audit_required=config.audit.required,
            classifier_timeout_seconds=config.classifier_timeout_seconds,
            assured=Assured(contract, hashes=[each.content_hash for each in classifiers.values()]),
            digests=Digests(keys),
            capture=None
            if vault is None
            else _capture(config.audit.text, audit, vault, maskers, log),
            shadows=Shadows(audit, telemetry, log=log),
            evidence=watch,
            request_seconds=config.server.request_seconds,
            spend=None if limiter is None else limiter.spend,
        )
        started.pop_all()
        _close_in_order(started, reader, gateway, watch)
        for watching in (
            keeper.watch(config.policy_watch_seconds),
            directory.watch(config.auth.store_watch_seconds),
        ):
            started.callback(asyncio.create_task(watching).cancel)
        archive = Archive(reader, audit, texts=audit, addenda=audit, vault=vault)
        yield Running(gateway, keeper, archive, directory, watch)


async def _start_backends(backends: Mapping[str, Backend], log: Log, telemetry: Telemetry) -> None:
    starters = (each for each in backends.values() if isinstance(each, Starter))
    await asyncio.gather(*(each.start(log, telemetry.registry) for each in starters))


def _close_in_order(
    started: AsyncExitStack, reader: DecisionReader, gateway: Gateway, watch: Watch | None
) -> None:
    started.push_async_callback(reader.aclose)
    started.push_async_callback(gateway.aclose)
    if watch is not None:
        # Before the gateway, which closes the log. What ends meanwhile, the next start reads.
        started.push_async_callback(watch.aclose)


def _for_texts(audit: AuditConfig) -> tuple[Vault | None, list[Masker]]:
    """The vault and the masks. Raises ConfigError where texts are to be kept without a key."""
    vault, maskers = open_vault(text_secrets(audit)), audit.text.maskers
    if vault is None and audit.text.capture == "text":
        raise _no_vault("audit.text.capture")
    return vault, [extensions.build("maskers", name, maskers[name]) for name in maskers]


def _capture(
    text: TextConfig, audit: DecisionStore, vault: Vault, maskers: Sequence[Masker], log: Log
) -> Capture:
    by_default = text.capture == "text"
    return Capture(audit, vault, maskers, by_default=by_default, max_bytes=text.max_bytes, log=log)


def _no_vault(place: str) -> ConfigError:
    message = "texts are to be kept, and there is no key to lock them"
    hint = f"set {TEXT_VARIABLE} (openssl rand -hex 32), or audit.text.keys; or keep no text"
    return ConfigError([Problem(message, path=place, hint=hint)])


def _contract(config: GatewayConfig) -> Contract | None:
    """The contract that is configured, else the shipped one where the shipped classifier serves."""
    if config.classification.contract is not None:
        return read_contract(config.classification.contract)
    return read_contract(SHIPPED_CONTRACT) if "domain" in config.classifiers else None


@asynccontextmanager
async def _exporting(otlp: OtlpConfig, log: Log) -> AsyncIterator[OtlpExporter | None]:
    """What sends finished requests to a collector, if there is one. Raises ConfigError."""
    if not otlp.endpoint:
        yield None
        return
    # An extra: its libraries need not be installed.
    from gateway.otlp import OtlpExporter, Settings

    settings = Settings(
        endpoint=otlp.endpoint,
        headers=otlp_headers(otlp),
        service_name=otlp.service_name,
        timeout_seconds=otlp.timeout_seconds,
        delay_seconds=otlp.delay_seconds,
    )
    exporter = OtlpExporter(settings, log=log)
    try:
        yield exporter
    finally:
        await exporter.aclose()


async def _start_watch(
    config: GatewayConfig,
    audit: DecisionStore,
    telemetry: Telemetry,
    log: Log,
    started: AsyncExitStack,
) -> Watch | None:
    """Who gathers evidence from the log, if anybody is to. Raises ConfigError or AuditUnavailable."""
    section = config.evidence
    if not section.enabled:
        return None
    journal = await asyncio.to_thread(Journal, config.audit.url, log=log)
    messenger = None
    if section.webhook is not None:
        messenger = Webhook(
            section.webhook,
            secret=webhook_secret(),
            timeout_seconds=section.webhook_seconds,
            log=log,
        )
    watch = Watch(
        await asyncio.to_thread(Follower, journal, limit=section.cells),
        journal,
        audit,
        bounds=Bounds(section.alpha, attestation=section.attestation, demote=section.demote),
        gauges=Gauges(telemetry.registry),
        messenger=messenger,
        poll_seconds=section.poll_seconds,
        log=log,
    )
    started.push_async_callback(watch.aclose)
    await watch.start()
    return watch


async def _open_log(audit: AuditConfig, keys: Keyring, log: Log) -> DecisionStore:
    """The decision log. Raises ConfigError or AuditUnavailable."""
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
