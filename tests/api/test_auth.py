from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gateway.config import AuthConfig, GatewayConfig, KeyConfig

ANN, BOB = "sk-ann-0123456789", "sk-bob-über"
ASK = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
AUTH = AuthConfig(
    (
        KeyConfig("ann", hashlib.sha256(ANN.encode()).hexdigest().upper(), team="red", admin=True),
        KeyConfig("bob", hashlib.sha256(BOB.encode()).hexdigest()),
    )
)


@pytest.fixture(scope="module")
def locked(launch: Any, make_config: Callable[..., GatewayConfig]) -> Iterator[Any]:
    with launch(make_config(auth=AUTH)) as live:
        yield live


def test_a_known_key_becomes_a_caller_on_record(locked: Any) -> None:
    response = locked.post(ASK, authorization=f"Bearer {ANN}")

    caller = locked.entry(response.headers["x-draftgate-decision-id"]).decision.caller
    assert (caller.id, caller.team, caller.admin) == ("ann", "red", True)
    assert locked.post(ASK, authorization=f"bearer  {ANN}").status_code == 200


def test_the_key_may_stand_alone_in_a_header_of_its_own(locked: Any) -> None:
    assert locked.post(ASK, x_api_key=ANN).status_code == 200
    assert locked.post(ASK, x_api_key=f"{ANN}x").status_code == 401
    assert locked.post(ASK, x_api_key=ANN, authorization="Bearer no").status_code == 401


def test_a_key_outside_ascii_is_compared_by_its_bytes(locked: Any) -> None:
    key = f"Bearer {BOB}".encode()

    response = httpx.get(f"{locked.url}/v1/models", headers={b"authorization": key})

    assert response.status_code == 200


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", f"Basic {ANN}", ANN, f"Bearer {ANN}x", "Bearer x y z"],
)
def test_without_a_known_key_it_is_a_401_that_repeats_nothing(
    locked: Any, header: str | None
) -> None:
    headers = {} if header is None else {"authorization": header}

    for response in (locked.post(ASK, **headers), locked.get("/v1/models", **headers)):
        error = response.json()["error"]
        assert response.status_code == 401
        assert list(error) == ["message", "type", "param", "code"]
        assert error["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-request-id"]
        assert ANN not in response.text
        assert not any(key.sha256 in response.text for key in AUTH.keys)


def test_the_key_is_checked_before_the_body_is_read(locked: Any) -> None:
    assert locked.post(b"{" * 100).status_code == 401


def test_health_and_metrics_need_no_key(locked: Any) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert locked.get(path).status_code == 200


def test_without_configured_keys_everybody_is_anonymous(server: Any) -> None:
    response = server.post(ASK, authorization="Bearer anything")

    caller = server.entry(response.headers["x-draftgate-decision-id"]).decision.caller
    assert (caller.id, caller.admin) == ("anonymous", False)
