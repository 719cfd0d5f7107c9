"""The keys that sign the decision log, or lock its texts. Knows nothing of where they come from."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import NamedTuple

from gateway.errors import ConfigError, Problem

MIN_LENGTH = 32
"""Bytes: as long as the code that it makes."""


class Key(NamedTuple):
    """A secret and the name that the log knows it by."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        """Without the secret."""
        return f"Key({self.id!r})"

    def sign(self, message: bytes) -> str:
        """HMAC-SHA256 of ``message``, in hex."""
        return hmac.digest(self.secret, message, "sha256").hex()


class _NoKey(Key):
    """Signs nothing: a plain digest, which anybody can make."""

    def sign(self, message: bytes) -> str:
        """SHA-256 of ``message``, in hex."""
        return hashlib.sha256(message).hexdigest()


UNSIGNED = _NoKey("", b"")
"""What a log without keys is chained with: it shows accidents and no adversary."""


class Keyring:
    """Keys by id; the first one signs, the others are for what was signed before."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = {key.id: key for key in keys}
        self.signing: Key = next(iter(self._keys.values()), UNSIGNED)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def all(self) -> tuple[Key, ...]:
        """Every key, the signing one first."""
        return tuple(self._keys.values())

    def get(self, key_id: str) -> Key | None:
        """The key with this id; for the empty id `UNSIGNED`, None for one that is not here."""
        return self._keys.get(key_id) if key_id else UNSIGNED


def keyring(secrets: Iterable[tuple[str, bytes]], *, path: str = "audit.keys") -> Keyring:
    """The keys of these ids and secrets, the signing one first; an empty id means that the key's
    own fingerprint is its id. ``path`` is where they are configured. Raises ConfigError for a
    secret that is too short."""
    keys = []
    for key_id, secret in secrets:
        if len(secret) < MIN_LENGTH:
            name = f"the key {key_id!r}" if key_id else "the key"
            raise ConfigError(
                [
                    Problem(
                        f"{name} has {len(secret)} characters, and needs {MIN_LENGTH}",
                        path=path,
                        hint="make one with: openssl rand -hex 32",
                    )
                ]
            )
        keys.append(Key(key_id or fingerprint(secret), secret))
    return Keyring(keys)


def fingerprint(secret: bytes) -> str:
    """A name for a key that nobody named: tells of it only whether two are the same."""
    return hmac.digest(secret, b"draftgate key id", "sha256").hex()[:12]
