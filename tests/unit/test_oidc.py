"""Tokens of an identity provider: a real one on a port, with keys that change."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gateway.access.building import build_directory
from gateway.access.directory import Directory
from gateway.access.oidc import OidcVerifier
from gateway.config import AuthConfig, OidcConfig
from gateway.errors import AuthenticationFailed, Unavailable
from gateway.grants import Scope
from gateway.log import build_log

AUDIENCE = "draftgate"


class Provider:
    """An identity provider."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.fetches = 0
        self.is_down = False
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if provider.is_down:
                    self.send_error(500)
                    return
                body = json.dumps(provider.document(self.path)).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def document(self, path: str) -> Any:
        if path == "/keys":
            self.fetches += 1
            return {"keys": [self._public(key_id) for key_id in self.keys]}
        return {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}

    def _public(self, key_id: str) -> dict[str, Any]:
        key = self.keys[key_id].public_key()
        is_rsa = isinstance(key, rsa.RSAPublicKey)
        algorithm = jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm
        return {**json.loads(algorithm.to_jwk(key)), "kid": key_id, "use": "sig"}

    def token(self, key_id: str = "one", algorithm: str = "RS256", **claims: Any) -> str:
        now = int(time.time())
        given = {"iss": self.issuer, "aud": AUDIENCE, "sub": "ann", "exp": now + 60} | claims
        kept = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(kept, self.keys[key_id], algorithm, headers={"kid": key_id})


def with_hmac(claims: dict[str, Any], secret: bytes) -> str:
    """A token signed with a secret that everybody knows: the library would not make one."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "typ": "JWT", "kid": "one"}, claims)
    ]
    signature = hmac.digest(secret, b".".join(parts), "sha256")
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


RSA_KEYS = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    made.keys["one"] = RSA_KEYS[0]
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def verifier(provider: Provider) -> OidcVerifier:
    return OidcVerifier(provider.issuer, AUDIENCE, leeway_seconds=30)


def test_a_token_becomes_a_caller_with_team_and_scopes(
    provider: Provider, verifier: OidcVerifier
) -> None:
    token = provider.token(team="red", scope="openid draftgate:inference draftgate:metrics x")

    found = verifier.verify(token)

    assert (found.caller.id, found.caller.team, found.caller.admin) == ("oidc:ann", "red", False)
    assert found.scopes == {Scope.INFERENCE, Scope.METRICS}


def test_a_token_without_scopes_of_ours_may_do_nothing(
    provider: Provider, verifier: OidcVerifier
) -> None:
    for scope in (None, "", "inference", ["openid", 3], 7, {"draftgate:inference": 1}):
        assert verifier.verify(provider.token(scope=scope)).scopes == frozenset()
    found = verifier.verify(provider.token(scope=["draftgate:inference"]))
    assert found.scopes == {Scope.INFERENCE}


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": int(time.time()) - 3600}, "expired"),
        ({"exp": None}, "claim is missing"),
        ({"aud": "another"}, "another audience"),
        ({"aud": None}, "claim is missing"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"sub": None}, "claim is missing"),
        ({"sub": ""}, "no caller"),
        ({"sub": "a" * 500}, "no caller"),
        ({"nbf": int(time.time()) + 3600}, "not valid yet"),
    ],
)
def test_a_wrong_claim_is_refused_without_repeating_it(
    provider: Provider, verifier: OidcVerifier, claims: dict[str, Any], reason: str
) -> None:
    with pytest.raises(AuthenticationFailed, match=reason) as caught:
        verifier.verify(provider.token(**claims))
    assert "evil" not in caught.value.message


def test_clocks_may_differ_a_little(provider: Provider, verifier: OidcVerifier) -> None:
    now = int(time.time())

    assert verifier.verify(provider.token(exp=now - 20)).caller.id == "oidc:ann"
    assert verifier.verify(provider.token(nbf=now + 20)).caller.id == "oidc:ann"
    with pytest.raises(AuthenticationFailed):
        verifier.verify(provider.token(exp=now - 40))


def test_only_a_private_key_of_the_issuer_signs(provider: Provider, verifier: OidcVerifier) -> None:
    other = Provider()
    other.keys["one"] = RSA_KEYS[1]
    other.issuer = provider.issuer
    public = json.dumps(provider.document("/keys"))
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 60}
    forged = [
        other.token(),
        with_hmac(claims, public.encode()),
        jwt.encode(claims, None, "none", headers={"kid": "one"}),
        jwt.encode(claims, RSA_KEYS[0], "RS256"),
        "a.b.c",
        "..",
        provider.token()[:-4] + "AAAA",
    ]
    other.server.server_close()

    for token in forged:
        with pytest.raises(AuthenticationFailed):
            verifier.verify(token)


def test_a_new_key_of_the_issuer_is_fetched_and_an_old_one_forgotten(provider: Provider) -> None:
    now = [1000.0]
    verifier = OidcVerifier(provider.issuer, AUDIENCE, clock=lambda: now[0])
    verifier.verify(provider.token())
    old = provider.token()
    provider.keys = {"two": ec.generate_private_key(ec.SECP256R1())}

    token = provider.token("two", "ES256")

    assert verifier.verify(token).caller.id == "oidc:ann"
    with pytest.raises(AuthenticationFailed):
        verifier.verify(old)


def test_made_up_key_ids_do_not_flood_the_issuer(provider: Provider) -> None:
    now = [1000.0]
    verifier = OidcVerifier(provider.issuer, AUDIENCE, clock=lambda: now[0])
    verifier.verify(provider.token())
    for number in range(20):
        provider.keys[f"made-up-{number}"] = RSA_KEYS[1]
        token = provider.token(f"made-up-{number}")
        del provider.keys[f"made-up-{number}"]
        with pytest.raises(AuthenticationFailed):
            verifier.verify(token)

    assert provider.fetches == 2
    now[0] += 11
    with pytest.raises(AuthenticationFailed):
        verifier.verify(token)
    assert provider.fetches == 3


def test_a_provider_that_is_away_is_503_and_comes_back(
    provider: Provider, verifier: OidcVerifier
) -> None:
    now = time.monotonic()
    verifier._clock = lambda: now
    provider.is_down = True
    with pytest.raises(Unavailable):
        verifier.verify(provider.token())

    provider.is_down = False
    # Who sends made-up tokens must not have everybody wait for a provider again and again.
    with pytest.raises(Unavailable):
        verifier.verify(provider.token())
    now += 3
    assert verifier.verify(provider.token()).caller.id == "oidc:ann"


async def test_the_configuration_names_the_provider_and_its_claims(provider: Provider) -> None:
    section = OidcConfig(
        issuer=provider.issuer,
        audience=AUDIENCE,
        jwks_url=f"{provider.issuer}/keys",
        caller_claim="email",
        team_claim="dept",
        scope_claim="roles",
        scope_prefix="dg/",
    )
    directory = build_directory(AuthConfig(oidc=section), b"", build_log())
    token = provider.token(email="ann@example.com", dept="red", roles=["dg/metrics", "inference"])

    found = await directory.find(f"Bearer {token}")

    assert (found.caller.id, found.caller.team) == ("oidc:ann@example.com", "red")
    assert found.scopes == {Scope.METRICS}


async def test_the_directory_takes_tokens_beside_keys(
    provider: Provider, verifier: OidcVerifier
) -> None:
    directory = Directory(tokens=verifier)

    assert not directory.is_open
    found = await directory.find(f"Bearer {provider.token()}")
    assert found.caller.id == "oidc:ann"
    with pytest.raises(AuthenticationFailed):
        await directory.find("Bearer no-token")
