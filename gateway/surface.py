"""The configuration of who may ask: keys, their store, an identity provider, and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from gateway.grants import Quota, Scope

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Switch = Annotated[str, msgspec.Meta(pattern="^(on|off)$")]
Address = Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s]+$")]


class KeyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One API key, known by its SHA-256 alone."""

    id: Name
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{64}$")]
    """The hex digest of the key: ``printf %s KEY | sha256sum``."""
    team: str | None = None
    admin: bool = False
    """All scopes."""
    scopes: tuple[Scope, ...] | None = None
    """None: `gateway.grants.DEFAULT_SCOPES`."""
    models: tuple[str, ...] | None = None
    """None: all."""
    quota: Quota = Quota()

    def __post_init__(self) -> None:
        if self.admin and self.scopes is not None:
            raise ValueError("`admin: true` is all scopes; leave one of the two out")


class OidcConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An OpenID Connect provider whose tokens are believed."""

    issuer: Address
    audience: Annotated[str, msgspec.Meta(min_length=1)]
    jwks_url: Address | None = None
    """None: what the issuer's discovery document says."""
    caller_claim: str = "sub"
    team_claim: str = "team"
    scope_claim: str = "scope"
    scope_prefix: str = "draftgate:"
    leeway_seconds: Annotated[float, msgspec.Meta(ge=0, le=600)] = 60.0
    """How far the provider's clock may be from ours."""


class AuthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may ask, and how much. Without keys, store and provider everybody is ``anonymous``."""

    keys: tuple[KeyConfig, ...] = ()
    store: str | None = None
    """A file's path or a database's URL, for ``draftgate keys``."""
    store_watch_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 1.0
    oidc: OidcConfig | None = None
    quota: Quota = Quota()
    """Of each caller, for what its key leaves open."""
    allow_anonymous: bool = False
    """Whether to listen beyond this machine without asking for keys."""
    protect_metrics: bool = False
    """Whether ``/metrics`` needs a key with the scope ``metrics``."""

    def __post_init__(self) -> None:
        for field in ("id", "sha256"):
            values = [getattr(key, field).lower() for key in self.keys]
            if repeated := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"two keys have the same {field} {repeated[0]!r}")

    @property
    def is_open(self) -> bool:
        """Whether nobody needs a key."""
        return not self.keys and self.store is None and self.oidc is None


def store_path(store: str, folder: Path) -> str:
    """``store`` with a path made relative to ``folder``; a URL as it is."""
    return store if "://" in store else str(folder / Path(store).expanduser())
