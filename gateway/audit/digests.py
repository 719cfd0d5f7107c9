"""`Digests`: how the log recognises a request, and an answer, without holding their text.

A plain digest of a prompt that can be guessed gives it away to whoever reads the log: they guess
until the digest fits. With a key of the log they cannot, for they would need the key.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.audit.keys import UNSIGNED, Key, Keyring

_PURPOSE = b"draftgate request digest 1"


class Digest(NamedTuple):
    """A digest, and which key made it."""

    value: str
    """In hex: HMAC-SHA256, or SHA-256 where there is no key."""
    key_id: str = ""
    """The id of the log's key that the digest's own was derived from; empty: none was."""


class Digests:
    """Digests of raw bodies and of answers' tokens, with the keys of the log."""

    def __init__(self, keys: Keyring | None = None) -> None:
        self._keys = [_derived(key) for key in (keys or Keyring()).all()]
        self._first = self._keys[0] if self._keys else UNSIGNED

    def of(self, body: bytes) -> Digest:
        """The digest that is recorded now."""
        return Digest(self._first.sign(body), self._first.id)

    def of_tokens(self, token_ids: Sequence[int]) -> Digest:
        """The same of an answer's token ids, each as four bytes, the lowest first."""
        return self.of(_packed(token_ids))

    def knows(self, key_id: str) -> bool:
        """Whether digests that this key made can be made again."""
        return key_id == UNSIGNED.id or any(key.id == key_id for key in self._keys)

    def has(self, digest: Digest, body: bytes) -> bool:
        """Whether ``digest``, with whatever key it was made, is that of ``body``."""
        return digest in self.candidates(body)

    def has_tokens(self, digest: Digest, token_ids: Sequence[int]) -> bool:
        """The same of an answer's token ids."""
        return self.has(digest, _packed(token_ids))

    def candidates(self, body: bytes) -> Iterator[Digest]:
        """Every digest that an older record may have: of each key, and the plain one last."""
        for key in (*self._keys, UNSIGNED):
            yield Digest(key.sign(body), key.id)


def _packed(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _derived(key: Key) -> Key:
    """A key that makes digests and nothing else: what it signs is no code of a chain."""
    return Key(key.id, hmac.digest(key.secret, _PURPOSE, "sha256"))
