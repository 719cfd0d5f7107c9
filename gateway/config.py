"""The configuration: frozen structs, and `load`, which reads a YAML file and then the environment.

The only reader of ``os.environ``. It must not build anything: the plugin hands each object its own
section.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gateway import documents
from gateway.errors import ConfigError, Problem
from gateway.surface import AuthConfig, KeyConfig, Name, OidcConfig, Switch, store_path

__all__ = ["AuthConfig", "GatewayConfig", "KeyConfig", "OidcConfig", "load"]

CONFIG_VARIABLE = "DRAFTGATE_CONFIG"

_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_YES = ("1", "true", "yes")

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to listen, and how large a request may be."""

    host: str = "127.0.0.1"
    port: Port = 8080
    """0 lets the system choose a free one."""
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 10 * 1024 * 1024
    shutdown_seconds: Seconds = 30.0
    """How long answers in progress may still run after a signal to stop."""
    patience_seconds: Seconds = 10.0
    """How long a stream waits for its first token before its headers are sent without it."""
    heartbeat_seconds: Seconds = 15.0
    """After so long without an event, a stream sends a comment."""
    kept_responses: Annotated[int, msgspec.Meta(ge=0)] = 256
    """How many responses of each caller are kept in memory, for `previous_response_id`."""
    kept_response_bytes: Annotated[int, msgspec.Meta(ge=0)] = 64 * 1024 * 1024
    """How many bytes of all callers' together."""
    drain_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    """How long at least to refuse in words after it, before no connection is taken any more."""
    request_seconds: Seconds | None = None
    """How long a request may take; one may ask for less."""
    body_seconds: Seconds = 60.0
    """How long the body of a request may take to arrive."""
    head_seconds: Seconds = 20.0
    """How long the head of a request may."""
    stall_seconds: Seconds = 120.0
    """How long a client may take none of its answer."""
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 1000
    cors_origins: tuple[Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s/]+$")], ...] = ()
    """Origins of web pages whose scripts may ask."""


class BackendConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One backend: the entry point's name, and its own keyword arguments."""

    type: str
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


def _refuse_repeated(ids: list[str]) -> None:
    if repeated := sorted({id_ for id_ in ids if ids.count(id_) > 1}):
        raise ValueError(f"two keys have the same id {repeated[0]!r}")


class LogKeyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key of the decision log, past or present: its name in the log, and where its secret is."""

    id: Name
    env: Annotated[str, msgspec.Meta(pattern=_VARIABLE)]
    """The environment variable that holds the secret; the file never does."""


class RetentionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of the decision log to keep; without a limit, all of it."""

    days: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_mb: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Of records, in millions of bytes; indexes come on top."""


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether prompts and answers are kept, and how."""

    capture: Annotated[str, msgspec.Meta(pattern="^(none|text)$")] = "none"
    """For decisions that say nothing themselves."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=64 << 20)] = 65536
    """Of a prompt, and again of an answer; the rest is cut off."""
    maskers: Mapping[str, Mapping[str, Any]] = msgspec.field(
        default_factory=lambda: {"patterns": {}}
    )
    """Entry points of what takes personal data out of texts, in order, with their options."""
    keys: tuple[LogKeyConfig, ...] = ()
    """The first locks, all unlock; none: the key in ``DRAFTGATE_TEXT_KEY``, if there is one."""

    def __post_init__(self) -> None:
        _refuse_repeated([key.id for key in self.keys])


class AuditConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where decisions are recorded."""

    url: str = ""
    """An SQLAlchemy URL; empty: an SQLite file in the state directory, as `load` fills in."""
    required: bool = True
    """Whether a request that cannot be recorded is refused."""
    keys: tuple[LogKeyConfig, ...] = ()
    """The first signs, all verify; none: the key in ``DRAFTGATE_AUDIT_KEY``, if there is one."""
    anchor: Path | None = None
    """A file, apart from the database, that says how far the log had come."""
    checkpoint_rows: Annotated[int, msgspec.Meta(ge=1)] = 1000
    checkpoint_seconds: Seconds = 60.0
    retention: RetentionConfig = RetentionConfig()
    text: TextConfig = TextConfig()

    def __post_init__(self) -> None:
        _refuse_repeated([key.id for key in self.keys])


class ClassificationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of the classifiers' figures."""

    contract: Path | None = None
    """None: the one that comes with the domain classifier's weights."""


class EvidenceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What speaks against traffic, and what follows."""

    enabled: bool = True
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-6
    """The probability that a sound cell ever raises an alarm by its e-value."""
    attestation: bool = True
    """Whether a failed attestation raises an alarm."""
    demote: bool = True
    """Whether an alarm has its cell decoded in standard mode until it is cleared."""
    cells: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 256
    """The others are counted together."""
    poll_seconds: Seconds = 2.0
    """How often to look for what other gateways on the same log have found."""
    webhook: Annotated[str, msgspec.Meta(pattern=r"^https?://[^/\s]+")] | None = None
    """Where to POST alarms."""
    webhook_seconds: Seconds = 5.0
    """How long one attempt may take."""


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is written to standard output."""

    level: Annotated[str, msgspec.Meta(pattern="^(debug|info|warning|error|critical)$")] = "info"
    json: bool = True


class OtlpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where finished requests are sent as OpenTelemetry traces and log records."""

    endpoint: Annotated[str, msgspec.Meta(pattern=r"^(https?://[^\s?#]+)?$")] = ""
    """The collector's address for OTLP over HTTP; empty: nothing is sent."""
    headers: Mapping[str, Annotated[str, msgspec.Meta(pattern=_VARIABLE)]] = msgspec.field(
        default_factory=dict
    )
    """Header → the environment variable that holds its value; the file never does."""
    service_name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] = "draftgate"
    timeout_seconds: Seconds = 5.0
    delay_seconds: Seconds = 5.0
    """How long something may wait to be sent with others."""


class TelemetryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What leaves the gateway by itself."""

    otlp: OtlpConfig = OtlpConfig()


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that an operator may set; every default works."""

    server: ServerConfig = ServerConfig()
    dashboard: Switch = "on"
    """Whether ``/dashboard`` is served."""
    backends: Annotated[Mapping[Name, BackendConfig], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: {"local": BackendConfig("local")}
    )
    policy: Path | None = None
    """None: the policy that comes with Draftgate."""
    policy_watch_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 1.0
    """How often to look whether the policy's files have changed; 0: only at SIGHUP."""
    classifiers: tuple[str, ...] = ("domain", "context", "language")
    classifier_timeout_seconds: Seconds = 2.0
    classification: ClassificationConfig = ClassificationConfig()
    audit: AuditConfig = AuditConfig()
    evidence: EvidenceConfig = EvidenceConfig()
    auth: AuthConfig = AuthConfig()
    log: LogConfig = LogConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    cache: Path | None = None
    """Where downloaded models live; None: the backend's own choice."""


def load(path: Path | None = None) -> GatewayConfig:
    """The configuration of ``path``, else of ``$DRAFTGATE_CONFIG``, else the defaults.

    The environment's variables win over the file. Relative paths of policy, contract and anchor in
    the file are relative to the file. Raises ConfigError with every problem.
    """
    path = path or _path(CONFIG_VARIABLE)
    config = GatewayConfig()
    if path is not None:
        config = documents.load(path, GatewayConfig)
        if config.policy is not None:
            policy = path.parent / config.policy.expanduser()
            config = msgspec.structs.replace(config, policy=policy)
        if config.audit.anchor is not None:
            anchor = path.parent / config.audit.anchor.expanduser()
            audit = msgspec.structs.replace(config.audit, anchor=anchor)
            config = msgspec.structs.replace(config, audit=audit)
        if (store := config.auth.store) is not None:
            auth = msgspec.structs.replace(config.auth, store=store_path(store, path.parent))
            config = msgspec.structs.replace(config, auth=auth)
        if (contract := config.classification.contract) is not None:
            section = ClassificationConfig(path.parent / contract.expanduser())
            config = msgspec.structs.replace(config, classification=section)
    return complete(
        override(
            config,
            model=os.environ.get("DRAFTGATE_MODEL") or None,
            policy=_path("DRAFTGATE_POLICY"),
            host=os.environ.get("DRAFTGATE_HOST") or None,
            port=_port(),
            database_url=os.environ.get("DRAFTGATE_DATABASE_URL") or None,
            cache=_path("DRAFTGATE_CACHE"),
            allow_anonymous=os.environ.get("DRAFTGATE_ALLOW_ANONYMOUS", "").lower() in _YES,
        )
    )


def environment() -> dict[str, str]:
    """A copy of the environment, for processes of ours."""
    return dict(os.environ)


def export(variables: Mapping[str, str]) -> None:
    """Set variables for libraries that are loaded from now on."""
    os.environ.update(variables)


def override(
    config: GatewayConfig,
    *,
    model: str | None = None,
    policy: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    database_url: str | None = None,
    cache: Path | None = None,
    log_level: str | None = None,
    allow_anonymous: bool = False,
) -> GatewayConfig:
    """``config`` with what is not None replaced; ``model`` goes to the first local backend."""
    replace = msgspec.structs.replace
    server, audit, log = config.server, config.audit, config.log
    backends = config.backends
    if model is not None:
        backends = _with_model(backends, model)
    if allow_anonymous:
        config = replace(config, auth=replace(config.auth, allow_anonymous=True))
    return replace(
        config,
        server=replace(
            server,
            host=server.host if host is None else host,
            port=server.port if port is None else port,
        ),
        audit=audit if database_url is None else replace(audit, url=database_url),
        log=log if log_level is None else replace(log, level=log_level),
        backends=backends,
        policy=config.policy if policy is None else policy,
        cache=config.cache if cache is None else cache,
    )


def complete(config: GatewayConfig) -> GatewayConfig:
    """``config`` with the policy, the log's URL and the model cache filled in where left open."""
    replace = msgspec.structs.replace
    backends = config.backends
    if config.cache is not None:
        backends = {name: _with_cache(backend, config.cache) for name, backend in backends.items()}
    audit = config.audit
    if not audit.url:
        audit = replace(audit, url=f"sqlite:///{_state_directory() / 'decisions.db'}")
    policy = config.policy or default_policy_path()
    return replace(config, audit=audit, backends=backends, policy=policy)


def default_policy_path() -> Path:
    """The shipped policy: in ``policies/`` of a checkout, or ``gateway/_policies`` of a wheel."""
    package = Path(__file__).parent
    candidates = (package.parent / "policies", package / "_policies")
    folder = next((path for path in candidates if (path / "default.yaml").is_file()), candidates[0])
    return folder / "default.yaml"


def _with_model(backends: Mapping[Name, BackendConfig], model: str) -> Mapping[Name, BackendConfig]:
    name = next((name for name, backend in backends.items() if backend.type == "local"), None)
    if name is None:
        message = f"model {model!r} is given, but no backend of type local is configured"
        raise ConfigError([Problem(message, path="backends", hint="leave the model out")])
    options = {**backends[name].options, "model": model}
    return {**backends, name: msgspec.structs.replace(backends[name], options=options)}


def _with_cache(backend: BackendConfig, cache: Path) -> BackendConfig:
    if backend.type != "local":
        return backend
    return msgspec.structs.replace(backend, options={"cache": str(cache), **backend.options})


def _state_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "draftgate"


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None


def _port() -> int | None:
    value = os.environ.get("DRAFTGATE_PORT")
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and int(value) <= 65535):
        message = f"{value!r} is no port"
        raise ConfigError(
            [Problem(message, path="DRAFTGATE_PORT", hint="a number from 0 to 65535")]
        )
    return int(value)
