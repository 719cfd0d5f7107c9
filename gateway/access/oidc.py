"""Bearer tokens of an OpenID Connect provider: signed by a key that it publishes.

Needs ``draftgate[oidc]``. Every claim that decides something is checked: issuer, audience, expiry,
and an algorithm that needs a private key, so that a published key cannot sign.
"""

from __future__ import annotations

import json
import math
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import jwt
import msgspec
from jwt.exceptions import PyJWKClientError, PyJWTError

from gateway.errors import AuthenticationFailed, Unavailable
from gateway.grants import Grant, Scope, grant

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
_KEYS_SECONDS = 300.0
_FETCH_SECONDS = 5.0
_PAUSE_SECONDS = 10.0
"""Between two fetches for a key that is not known: made-up key ids must not flood the provider."""
_FAILURE_SECONDS = 2.0
"""How long nobody asks a provider again that did not answer."""
_MAX_ID_LENGTH = 200
_MAX_DOCUMENT_BYTES = 1 << 20


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Which claim says what."""

    caller: str = "sub"
    team: str = "team"
    scope: str = "scope"
    prefix: str = "draftgate:"
    """What the names of our scopes begin with in there."""


class OidcVerifier:
    """Believes the tokens of one issuer that are meant for one audience."""

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        jwks_url: str | None = None,
        claims: Claims = Claims(),  # noqa: B008 - immutable
        leeway_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``jwks_url``: None for what the issuer's discovery document says. Fetches nothing yet."""
        self._issuer = issuer
        self._audience = audience
        self._url = jwks_url
        self._claims = claims
        self._leeway = leeway_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._client: jwt.PyJWKClient | None = None
        self._fetched_at = -_PAUSE_SECONDS
        self._failed_until = -math.inf

    def verify(self, token: str) -> Grant:
        """What the token's holder may do.

        Raises AuthenticationFailed, which says nothing of the token's contents, or Unavailable when
        the provider's keys cannot be had.
        """
        try:
            header = jwt.get_unverified_header(token)
            key = self._key(str(header.get("kid", "")))
            if key is None or header.get("alg") not in ALGORITHMS:
                raise AuthenticationFailed("The token is not signed by a key of the issuer.")
            found = jwt.decode(
                token,
                key.key,
                algorithms=list(ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp", "iss", "aud", self._claims.caller]},
            )
        except PyJWTError as error:
            raise AuthenticationFailed(f"The token is not valid: {_reason(error)}.") from None
        return self._grant(found)

    def _grant(self, found: Mapping[str, Any]) -> Grant:
        caller, team = found.get(self._claims.caller), found.get(self._claims.team)
        if not isinstance(caller, str) or not 0 < len(caller) <= _MAX_ID_LENGTH:
            raise AuthenticationFailed("The token names no caller.")
        given = found.get(self._claims.scope, ())
        names = given.split() if isinstance(given, str) else given
        names = names if isinstance(names, list) else []
        known = {f"{self._claims.prefix}{scope.value}": scope for scope in Scope}
        scopes = frozenset(known[name] for name in names if isinstance(name, str) and name in known)
        # The prefix keeps a token's subject from being mistaken for the caller of a key.
        return grant(f"oidc:{caller}", team=team if isinstance(team, str) else None, scopes=scopes)

    def _key(self, key_id: str) -> jwt.PyJWK | None:
        with self._lock:
            # Whoever makes tokens up must not keep us waiting for a provider that does not answer.
            if self._clock() < self._failed_until:
                raise _unreachable()
            try:
                client = self._client = self._client or self._connect()
                found = _named(client.get_signing_keys(), key_id)
                now = self._clock()
                if found is None and now - self._fetched_at >= _PAUSE_SECONDS:
                    self._fetched_at = now
                    found = _named(client.get_signing_keys(refresh=True), key_id)
                return found
            except (PyJWKClientError, OSError, ValueError) as error:
                self._failed_until = self._clock() + _FAILURE_SECONDS
                raise _unreachable() from error

    def _connect(self) -> jwt.PyJWKClient:
        url = self._url or _discovered(self._issuer)
        return jwt.PyJWKClient(url, lifespan=_KEYS_SECONDS, timeout=_FETCH_SECONDS)


def _named(keys: list[jwt.PyJWK], key_id: str) -> jwt.PyJWK | None:
    return next((key for key in keys if key.key_id == key_id), None)


def _discovered(issuer: str) -> str:
    """Where the issuer says that its keys are. Raises OSError or ValueError."""
    place = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    with urllib.request.urlopen(place, timeout=_FETCH_SECONDS) as answer:  # noqa: S310 - configured
        document = json.loads(answer.read(_MAX_DOCUMENT_BYTES))
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise ValueError("the discovery document is another issuer's")
    return str(document["jwks_uri"])


def _reason(error: PyJWTError) -> str:
    known = {
        jwt.ExpiredSignatureError: "it has expired",
        jwt.InvalidAudienceError: "it is meant for another audience",
        jwt.InvalidIssuerError: "it is another issuer's",
        jwt.ImmatureSignatureError: "it is not valid yet",
        jwt.MissingRequiredClaimError: "a claim is missing",
    }
    return next((text for kind, text in known.items() if isinstance(error, kind)), "no such token")


def _unreachable() -> Unavailable:
    message = "The identity provider's keys cannot be fetched; try again soon."
    return Unavailable(message, retry_after=5)
