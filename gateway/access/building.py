"""Builds who is asked about callers, from the section of the configuration."""

from __future__ import annotations

from pathlib import Path

from gateway.access.directory import Directory, TokenVerifier
from gateway.access.files import FileKeyStore
from gateway.access.keys import Digester
from gateway.access.store import KeyStore
from gateway.errors import ConfigError, Problem
from gateway.grants import ALL_SCOPES, DEFAULT_SCOPES, Grant, grant
from gateway.log import Log
from gateway.surface import AuthConfig, KeyConfig, OidcConfig


def build_directory(auth: AuthConfig, server_key: bytes, log: Log) -> Directory:
    """The directory of this section; ``server_key`` is what stored digests are keyed with.

    Reads no store yet. Raises ConfigError.
    """
    return Directory(
        {key.sha256.lower(): _grant(key) for key in auth.keys},
        store=None if auth.store is None else open_store(auth.store),
        digester=Digester(server_key),
        tokens=None if auth.oidc is None else _verifier(auth.oidc),
        log=log,
    )


def open_store(store: str) -> KeyStore:
    """The store at a path or URL. Raises ConfigError."""
    if "://" not in store:
        return FileKeyStore(Path(store).expanduser())
    # Its library takes longer to import than a file needs to be read.
    from gateway.access.sql import SqlKeyStore

    return SqlKeyStore(store)


def _grant(key: KeyConfig) -> Grant:
    scopes = DEFAULT_SCOPES if key.scopes is None else frozenset(key.scopes)
    return grant(
        key.id,
        team=key.team,
        scopes=ALL_SCOPES if key.admin else scopes,
        models=key.models,
        quota=key.quota,
    )


def _verifier(oidc: OidcConfig) -> TokenVerifier:
    try:
        from gateway.access.oidc import Claims, OidcVerifier
    except ImportError:
        problem = Problem(
            "tokens of an identity provider need PyJWT",
            path="auth.oidc",
            hint="pip install 'draftgate[oidc]'",
        )
        raise ConfigError([problem]) from None
    return OidcVerifier(
        oidc.issuer,
        oidc.audience,
        jwks_url=oidc.jwks_url,
        claims=Claims(
            caller=oidc.caller_claim,
            team=oidc.team_claim,
            scope=oidc.scope_claim,
            prefix=oidc.scope_prefix,
        ),
        leeway_seconds=oidc.leeway_seconds,
    )
