"""The secrets that the environment holds, for the sections of the configuration that name them."""

from __future__ import annotations

from gateway.config import AuditConfig, LogKeyConfig, OtlpConfig, environment
from gateway.errors import ConfigError, Problem

SIGNING_VARIABLE = "DRAFTGATE_AUDIT_KEY"
TEXT_VARIABLE = "DRAFTGATE_TEXT_KEY"
WEBHOOK_VARIABLE = "DRAFTGATE_WEBHOOK_KEY"
KEY_VARIABLE = "DRAFTGATE_KEY_SECRET"


def signing_secrets(audit: AuditConfig) -> list[tuple[str, bytes]]:
    """Id and secret of each key that signs the log, as the environment holds them; the first signs.

    A key that nobody named has the empty id. Raises ConfigError when the first one is not there:
    a log that is meant to be signed must not become an unsigned one unnoticed.
    """
    return _secrets(audit.keys, SIGNING_VARIABLE, "audit.keys")


def text_secrets(audit: AuditConfig) -> list[tuple[str, bytes]]:
    """The same of each key that locks captured texts; the first locks."""
    return _secrets(audit.text.keys, TEXT_VARIABLE, "audit.text.keys")


def _secrets(keys: tuple[LogKeyConfig, ...], variable: str, place: str) -> list[tuple[str, bytes]]:
    if not keys:
        secret = environment().get(variable)
        return [("", secret.encode())] if secret else []
    found = [(key.id, environment().get(key.env, "").encode()) for key in keys]
    if not found[0][1]:
        message = f"the environment has no {keys[0].env}, which holds the key {keys[0].id!r}"
        hint = f"set it, or take the key out of {place}"
        raise ConfigError([Problem(message, path=place, hint=hint)])
    return [(key_id, secret) for key_id, secret in found if secret]


def otlp_headers(otlp: OtlpConfig) -> dict[str, str]:
    """The headers with their values from the environment. Raises ConfigError for one without."""
    problems = [
        Problem(
            f"the environment has no {variable}, which holds the header {name!r}",
            path="telemetry.otlp.headers",
            hint="set it, or take the header out",
        )
        for name, variable in otlp.headers.items()
        if not environment().get(variable)
    ]
    if problems:
        raise ConfigError(problems)
    return {name: environment()[variable] for name, variable in otlp.headers.items()}


def webhook_secret() -> bytes | None:
    """The key that signs what is sent to the webhook, if there is one."""
    return environment().get(WEBHOOK_VARIABLE, "").encode() or None


def key_secret() -> bytes:
    """What the digests of stored API keys are keyed with; empty where the environment has none."""
    return environment().get(KEY_VARIABLE, "").encode()
