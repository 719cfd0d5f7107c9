"""What a key is for: scopes, models, and changes of the store while the gateway runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.access import store as stores
from gateway.access.building import open_store
from gateway.access.keys import Digester, StoredKey
from gateway.access.store import KeyStore
from gateway.config import AuthConfig, GatewayConfig
from gateway.grants import ALL_SCOPES, Scope

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
ROUTES: list[tuple[str, str, Any, Scope | None]] = [
    ("POST", "/v1/chat/completions", ASK, Scope.INFERENCE),
    ("POST", "/v1/completions", {"model": "scripted", "prompt": "a"}, Scope.INFERENCE),
    ("POST", "/v1/responses", {"model": "scripted", "input": "a"}, Scope.INFERENCE),
    ("GET", "/v1/responses/ID", None, Scope.INFERENCE),
    ("POST", "/v1/messages", {**ASK, "max_tokens": 9}, Scope.INFERENCE),
    ("POST", "/v1/messages/count_tokens", ASK, Scope.INFERENCE),
    ("POST", "/v1/decisions/explain", {"request": ASK}, Scope.INFERENCE),
    ("GET", "/v1/models", None, None),
    ("GET", "/v1/models/scripted", None, None),
    ("GET", "/v1/decisions/ID", None, Scope.DECISIONS_READ),
    ("POST", "/v1/decisions/ID/feedback", {"domains": []}, Scope.EVIDENCE_WRITE),
    ("GET", "/v1/policy", None, Scope.POLICY_WRITE),
    ("GET", "/v1/policy/versions", None, Scope.POLICY_WRITE),
    ("POST", "/v1/policy/validate", {"policy": "version: 1\nname: a\n"}, Scope.POLICY_WRITE),
    ("GET", "/metrics", None, Scope.METRICS),
]


class Locked:
    """A gateway with a store of keys, and the keys that a test makes."""

    def __init__(self, live: Any, store: KeyStore) -> None:
        self.live = live
        self.store = store

    def key(self, caller: str = "ann", *scopes: Scope, **fields: Any) -> dict[str, str]:
        """The header of a new key, once the gateway knows it."""
        template = StoredKey(
            handle="",
            digest="",
            caller=caller,
            created_at=time.time(),
            scopes=tuple(scopes),
            **fields,
        )
        _, secret = stores.create(self.store, Digester(), template)
        header = {"authorization": f"Bearer {secret}"}
        self.await_status(200, header)
        return header

    def await_status(self, status: int, header: dict[str, str]) -> Any:
        """The list of models, once its status is this."""
        deadline = time.monotonic() + 5
        while (answer := self.live.get("/v1/models", **header)).status_code != status:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.01)
        return answer

    def ask(self, method: str, path: str, body: Any, header: dict[str, str]) -> Any:
        if method == "GET":
            return self.live.get(path, **header)
        return self.live.post(body, path, **header)


@pytest.fixture(scope="module")
def locked(
    launch: Any, make_config: Callable[..., GatewayConfig], tmp_path_factory: Any
) -> Iterator[Locked]:
    path: Path = tmp_path_factory.mktemp("keys") / "keys.json"
    auth = AuthConfig(store=str(path), store_watch_seconds=0.01, protect_metrics=True)
    with launch(make_config({"models": ["scripted", "other"]}, auth=auth)) as live:
        yield Locked(live, open_store(str(path)))


def test_with_a_store_that_is_empty_nobody_comes_in(locked: Locked) -> None:
    for method, path, body, _ in ROUTES:
        assert locked.ask(method, path, body, {}).status_code == 401, path
    assert locked.live.get("/readyz").status_code == 200


@pytest.mark.parametrize(("method", "path", "body", "scope"), ROUTES, ids=[r[1] for r in ROUTES])
def test_each_route_needs_its_scope_and_no_other(
    locked: Locked, method: str, path: str, body: Any, scope: Scope | None
) -> None:
    with_it = locked.key("ann", *([] if scope is None else [scope]))
    without = locked.key("ann", *(ALL_SCOPES - {scope}))

    assert locked.ask(method, path, body, with_it).status_code in (200, 404)
    refused = locked.ask(method, path, body, without)
    if scope is None:
        assert refused.status_code == 200
    else:
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "permission_denied"
        assert repr(scope.value) in refused.json()["error"]["message"]


def test_every_route_is_in_the_table_above(locked: Locked) -> None:
    """A new one must say what it needs: who forgets gets the scope of those that generate."""
    paths = locked.live.get("/openapi.json").json()["paths"]
    known = {path.replace("ID", "{decision_id}") for _, path, _, _ in ROUTES}
    known |= {"/v1/models/{model_id}", "/healthz", "/readyz", "/v1/policy/rollback"}
    known |= {"/v1/policy/versions/{policy_hash}"}
    unlisted = set(paths) - known

    for path in unlisted:
        for method in paths[path]:
            answer = locked.ask(method.upper(), path, {}, locked.key("ann", Scope.METRICS))
            assert answer.status_code in (403, 405), path


def test_the_decisions_of_others_need_a_scope_of_their_own(locked: Locked) -> None:
    ann = locked.key("ann", Scope.INFERENCE, Scope.DECISIONS_READ)
    decision = locked.live.post(ASK, **ann).headers["x-draftgate-decision-id"]
    bob = locked.key("bob", Scope.DECISIONS_READ)
    auditor = locked.key("eve", Scope.DECISIONS_READ, Scope.DECISIONS_DETAIL)

    path = f"/v1/decisions/{decision}"
    assert [locked.live.get(path, **who).status_code for who in (ann, bob, auditor)] == [
        200,
        404,
        200,
    ]


def test_a_key_for_one_model_knows_of_no_other(locked: Locked) -> None:
    key = locked.key("ann", Scope.INFERENCE, models=("other",))

    listed = [model["id"] for model in locked.live.get("/v1/models", **key).json()["data"]]
    assert listed == ["other"]
    assert locked.live.get("/v1/models/scripted", **key).status_code == 404
    assert locked.live.post({**ASK, "model": "other"}, **key).status_code == 200
    for body, path in (
        (ASK, "/v1/chat/completions"),
        ({"model": "scripted", "input": "a"}, "/v1/responses"),
        ({**ASK, "max_tokens": 9}, "/v1/messages"),
        (ASK, "/v1/messages/count_tokens"),
        ({"request": ASK}, "/v1/decisions/explain"),
    ):
        refused = locked.live.post(body, path, **key)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "model_not_allowed"
        assert refused.json()["error"]["param"] == "model"


def test_keys_come_and_go_while_the_gateway_runs(locked: Locked) -> None:
    header = locked.key("carl", Scope.INFERENCE)
    assert locked.live.post(ASK, **header).status_code == 200

    stores.revoke(locked.store, "carl", now=time.time())

    message = locked.await_status(401, header).json()["error"]["message"]
    assert "revoked" in message
    assert header["authorization"].split()[1] not in message


def test_all_scopes_are_an_administrator_on_record(locked: Locked) -> None:
    answer = locked.live.post(ASK, **locked.key("root", *ALL_SCOPES))

    assert locked.live.entry(answer.headers["x-draftgate-decision-id"]).decision.caller.admin
