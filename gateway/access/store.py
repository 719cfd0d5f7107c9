"""The seam to where API keys are kept, and what is done with them there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gateway.access.keys import Digester, StoredKey, new_secret
from gateway.errors import ConfigError, Problem

Keys = tuple[StoredKey, ...]


class KeyStore(Protocol):
    """A place for keys that several processes may read and change at a time. All calls block."""

    name: str
    """How to call it in messages: no password."""

    def version(self) -> object:
        """Something cheap that differs whenever `read` would. Raises ConfigError like `read`."""
        ...

    def read(self) -> Keys:
        """All keys. Raises ConfigError when the store is there but cannot be read."""
        ...

    def change(self, edit: Callable[[Keys], Keys]) -> None:
        """Replace all keys by what ``edit`` makes of them, while nobody else can change them.

        What ``edit`` raises leaves them as they were. Raises ConfigError.
        """
        ...


def create(store: KeyStore, digester: Digester, template: StoredKey) -> tuple[StoredKey, str]:
    """Add a key like ``template``, with a new handle and secret; returns it and the secret."""
    handle, secret = new_secret()
    key = msgspec.structs.replace(template, handle=handle, digest=digester.digest(secret))
    store.change(lambda keys: (*keys, key))
    return key, secret


def revoke(store: KeyStore, wanted: str, *, now: float) -> Keys:
    """Revoke the key of this handle, or all that a caller has; returns those that were valid.

    Raises ConfigError where there is none.
    """
    revoked: list[StoredKey] = []

    def edit(keys: Keys) -> Keys:
        found = _named(keys, wanted, store.name)
        revoked[:] = [
            msgspec.structs.replace(key, revoked_at=now) for key in found if key.revoked_at is None
        ]
        by_handle = {key.handle: key for key in revoked}
        return tuple(by_handle.get(key.handle, key) for key in keys)

    store.change(edit)
    return tuple(revoked)


def rotate(
    store: KeyStore, digester: Digester, handle: str, *, now: float, overlap_seconds: float
) -> tuple[StoredKey, str]:
    """A new key in place of another, which stays valid for ``overlap_seconds`` more.

    Raises ConfigError where there is no such key, or it is not valid any more.
    """
    new_handle, secret = new_secret()
    made: list[StoredKey] = []

    def edit(keys: Keys) -> Keys:
        (old,) = _named(keys, handle, store.name, callers=False)
        if old.state(now) != "valid":
            raise _wrong(store.name, f"the key {handle!r} is {old.state(now)}", "create a new one")
        lifetime = None if old.expires_at is None else old.expires_at - old.created_at
        made[:] = [
            msgspec.structs.replace(
                old,
                handle=new_handle,
                digest=digester.digest(secret),
                created_at=now,
                expires_at=None if lifetime is None else now + lifetime,
            )
        ]
        end = now + overlap_seconds
        end = end if old.expires_at is None else min(end, old.expires_at)
        ending = msgspec.structs.replace(old, expires_at=end)
        return (*(ending if key is old else key for key in keys), *made)

    store.change(edit)
    return made[0], secret


def _named(keys: Keys, wanted: str, place: str, *, callers: bool = True) -> Sequence[StoredKey]:
    found = [key for key in keys if wanted == key.handle or (callers and wanted == key.caller)]
    if not found:
        raise _wrong(place, f"there is no key {wanted!r}", "`draftgate keys list` shows them")
    return found


def _wrong(place: str, message: str, hint: str) -> ConfigError:
    return ConfigError([Problem(message, path=place, hint=hint)])
