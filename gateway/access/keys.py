"""An API key: a random secret that is shown once, and the record of it that is kept.

A key is 256 random bits, so a plain keyed digest protects it: there is nothing to guess, and a slow
password hash would only cost every request its time. What the digest is keyed with stays outside of
the store, so that who can write the store cannot make a key that is believed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Annotated

import msgspec

from gateway.grants import DEFAULT_SCOPES, Grant, Quota, Scope, grant

PREFIX = "dgk"
"""What every key begins with, so that scanners for leaked secrets know it."""
_FORM = re.compile(rf"{PREFIX}_([0-9a-f]{{12}})_([A-Za-z0-9_-]{{43}})")
_NOBODY = "0" * 64

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]


class StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is kept of one key: all but its secret. Times are seconds since the epoch, UTC."""

    handle: str
    """Its public part, which lists show and `revoke` takes."""
    digest: str
    """``sha256:`` or ``hmac-sha256:`` and 64 hex digits."""
    caller: Name
    team: str | None = None
    scopes: tuple[Scope, ...] = tuple(sorted(DEFAULT_SCOPES))
    models: tuple[str, ...] | None = None
    quota: Quota = Quota()
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def state(self, now: float) -> str:
        """``valid``, ``expired`` or ``revoked``."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "valid"

    def grant(self) -> Grant:
        """What the key lets its holder do."""
        return grant(
            self.caller,
            team=self.team,
            scopes=frozenset(self.scopes),
            models=self.models,
            quota=self.quota,
        )


class Digester:
    """Turns secrets into digests and compares them; with a server key if there is one."""

    def __init__(self, server_key: bytes = b"") -> None:
        self._key = server_key

    def digest(self, secret: str) -> str:
        """What a store may keep of ``secret``."""
        data = secret.encode()
        if self._key:
            return f"hmac-sha256:{hmac.digest(self._key, data, 'sha256').hex()}"
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def matches(self, secret: str, key: StoredKey | None) -> bool:
        """Whether ``key`` is the record of ``secret``; as quick where there is no record."""
        kept = _NOBODY if key is None else key.digest
        return hmac.compare_digest(self.digest(secret), kept)


def new_secret() -> tuple[str, str]:
    """A new key's handle, and the key itself."""
    handle = secrets.token_hex(6)
    return handle, f"{PREFIX}_{handle}_{secrets.token_urlsafe(32)}"


def handle_of(secret: str) -> str | None:
    """The public part of what looks like a key of ours."""
    match = _FORM.fullmatch(secret)
    return None if match is None else match[1]
