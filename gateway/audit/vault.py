"""`Vault`: texts under lock, AES-256-GCM. Knows nothing of databases, nor of where keys come from."""

from __future__ import annotations

import base64
import binascii
import secrets as random
from collections.abc import Iterable
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.audit.keys import Key, Keyring, keyring
from gateway.errors import TextLocked

_NONCE_BYTES = 12
"""Drawn anew for each text (NIST SP 800-38D allows a key 2^32 texts with drawn ones)."""
_PURPOSE = b"draftgate text 1"
"""So that the key made here is of no use anywhere else."""


class Locked(NamedTuple):
    """A text under lock."""

    key_id: str
    ciphertext: str
    """Base64 of nonce, ciphertext and tag: text, so that every database and file can hold it."""


class Vault:
    """Locks with the first key, unlocks with each."""

    def __init__(self, keys: Keyring) -> None:
        """The ring must hold a key. Raises ValueError."""
        if not keys:
            raise ValueError("a vault needs a key")
        self._keys = keys
        self._ciphers: dict[str, AESGCM] = {}

    def lock(self, text: bytes, purpose: str) -> Locked:
        """Encrypt; only who names the same ``purpose`` can unlock it."""
        nonce = random.token_bytes(_NONCE_BYTES)
        sealed = self._cipher(self._keys.signing).encrypt(nonce, text, purpose.encode())
        return Locked(self._keys.signing.id, base64.b64encode(nonce + sealed).decode("ascii"))

    def unlock(self, locked: Locked, purpose: str) -> bytes:
        """The text. Raises TextLocked."""
        key = self._keys.get(locked.key_id)
        if key is None or not key.id:
            raise TextLocked(
                f"The text was locked with the key {locked.key_id!r}, which is not here: list it in "
                "audit.text.keys, or set DRAFTGATE_TEXT_KEY to it."
            )
        try:
            raw = base64.b64decode(locked.ciphertext, validate=True)
            nonce, sealed = raw[:_NONCE_BYTES], raw[_NONCE_BYTES:]
            return self._cipher(key).decrypt(nonce, sealed, purpose.encode())
        except (InvalidTag, ValueError, binascii.Error) as error:
            raise TextLocked(
                f"The text cannot be unlocked: it was changed, or {key.id!r} is another key than the "
                "one of that name that locked it."
            ) from error

    def _cipher(self, key: Key) -> AESGCM:
        if key.id not in self._ciphers:
            # The secret is text of any length; the cipher needs 256 bits.
            derive = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=_PURPOSE)
            self._ciphers[key.id] = AESGCM(derive.derive(key.secret))
        return self._ciphers[key.id]


def open_vault(secrets: Iterable[tuple[str, bytes]]) -> Vault | None:
    """A vault with the keys of these ids and secrets, the first of which locks; None without any.

    Raises ConfigError for a secret that is too short.
    """
    keys = keyring(secrets, path="audit.text.keys")
    return Vault(keys) if keys else None


def purpose(decision_id: str, kind: str) -> str:
    """What a text is locked for: it can stand in no other place of the log."""
    return f"{decision_id}\n{kind}"
