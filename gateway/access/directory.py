"""`Directory`: from a credential to what its holder may do. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gateway.access.keys import Digester, StoredKey, handle_of
from gateway.access.store import KeyStore
from gateway.errors import AuthenticationFailed, ConfigError
from gateway.grants import ANONYMOUS, Grant
from gateway.log import Log, build_log

_UNKNOWN = "The API key is not known to this gateway."
_TOKEN_DOTS = 2


class TokenVerifier(Protocol):
    """Believes tokens that somebody else has signed."""

    def verify(self, token: str) -> Grant:
        """What the token's holder may do. Blocks; raises AuthenticationFailed."""
        ...


class Directory:
    """The keys of the configuration, those of a store, and tokens of an identity provider.

    The store is read again whenever it has changed, so a key that is revoked is refused as soon as
    `watch` looks. While it cannot be read, the keys stay as they were.
    """

    def __init__(
        self,
        fixed: Mapping[str, Grant] | None = None,
        *,
        store: KeyStore | None = None,
        digester: Digester | None = None,
        tokens: TokenVerifier | None = None,
        clock: Callable[[], float] = time.time,
        log: Log | None = None,
    ) -> None:
        """``fixed``: by the SHA-256 of each key, in lower-case hex. Reads nothing yet."""
        self._fixed: Sequence[tuple[str, Grant]] = tuple((fixed or {}).items())
        self._store = store
        self._digester = digester or Digester()
        self._tokens = tokens
        self._clock = clock
        self._log = log or build_log()
        self._keys: Mapping[str, StoredKey] = {}
        self._version: object = None
        self._healthy = True

    @property
    def is_open(self) -> bool:
        """Whether nobody needs a key."""
        return not self._fixed and self._store is None and self._tokens is None

    async def find(self, authorization: str) -> Grant:
        """What the sender of this ``Authorization`` header may do. Raises AuthenticationFailed."""
        if self.is_open:
            return ANONYMOUS
        scheme, _, given = authorization.partition(" ")
        secret = given.strip()
        if scheme.lower() != "bearer" or not secret:
            raise AuthenticationFailed(
                "This gateway needs an API key; send the header 'Authorization: Bearer YOUR_KEY'."
            )
        found = self._stored(secret) or self._configured(secret)
        if found is not None:
            return found
        if self._tokens is not None and secret.count(".") == _TOKEN_DOTS:
            return await asyncio.to_thread(self._tokens.verify, secret)
        raise AuthenticationFailed(_UNKNOWN)

    def refresh(self) -> None:
        """Read the store if it has changed. Blocks; raises ConfigError."""
        if self._store is None:
            return
        version = self._store.version()
        if self._version is None or version != self._version:
            self._keys = {key.handle: key for key in self._store.read()}
            self._version = version

    async def watch(self, seconds: float) -> None:
        """Refresh so often, for ever; a store that fails is tried again and told of once."""
        while self._store is not None:
            await asyncio.sleep(seconds)
            try:
                await asyncio.to_thread(self.refresh)
            except ConfigError as error:
                if self._healthy:
                    self._log.error("keys_not_read", error=str(error))
                self._healthy = False
            else:
                self._healthy = True

    def _stored(self, secret: str) -> Grant | None:
        handle = handle_of(secret)
        if handle is None:
            return None
        key = self._keys.get(handle)
        # Compared also where there is no such key: the time taken says nothing of the store.
        if not self._digester.matches(secret, key) or key is None:
            return None
        if (state := key.state(self._clock())) != "valid":
            raise AuthenticationFailed(f"This API key is {state}; use a newer one.")
        return key.grant()

    def _configured(self, secret: str) -> Grant | None:
        # Header text is its bytes read as Latin-1; the digest is of the bytes, as sha256sum takes
        # them. Every key is compared, and each in constant time.
        digest = hashlib.sha256(secret.encode("latin-1", "replace")).hexdigest()
        found = [grant for known, grant in self._fixed if hmac.compare_digest(digest, known)]
        return found[0] if found else None
