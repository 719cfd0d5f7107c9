from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.config import AuthConfig, GatewayConfig, KeyConfig
from tests.live import LiveServer

NO_QUANTILES = {"p50": None, "p95": None}


def _key(name: str, admin: bool = False) -> KeyConfig:
    return KeyConfig(name, hashlib.sha256(name.encode()).hexdigest(), team="lab", admin=admin)


@pytest.fixture(scope="module")
def live(
    make_config: Callable[..., GatewayConfig], launch: type[LiveServer]
) -> Iterator[LiveServer]:
    """A server on which ann has asked four times and bob once."""
    auth = AuthConfig((_key("ann"), _key("bob"), _key("root", admin=True)))
    with launch(make_config(auth=auth)) as server:
        for name, text in (
            ("ann", "a function"),
            ("ann", "a dose"),
            ("bob", "a refund"),
            ("ann", "hello"),
            ("ann", "hello again"),
        ):
            answer = server.post(
                {"model": "scripted", "messages": [{"role": "user", "content": text}]},
                authorization=f"Bearer {name}",
            )
            assert answer.status_code == 200
            server.entry(answer.headers["x-draftgate-decision-id"])
        yield server


def _get(live: LiveServer, query: str, key: str = "root", path: str = "/v1/decisions") -> Any:
    answer = live.get(f"{path}?{query}", authorization=f"Bearer {key}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def _callers(page: Any) -> list[str]:
    return [entry["decision"]["caller"]["id"] for entry in page["data"]]


def test_callers_list_their_own_and_administrators_all(live: LiveServer) -> None:
    assert _callers(_get(live, "", "ann")) == ["ann"] * 4
    assert _callers(_get(live, "caller=bob", "bob")) == ["bob"]
    assert sorted(_callers(_get(live, ""))) == ["ann"] * 4 + ["bob"]
    assert _callers(_get(live, "caller=bob")) == ["bob"]
    assert live.get("/v1/decisions").status_code == 401


def test_an_entry_of_the_list_is_the_one_its_own_address_gives(live: LiveServer) -> None:
    (entry,) = _get(live, "rule=code&mode=speculative&executed=speculative")["data"]
    own = live.get(f"/v1/decisions/{entry['id']}", authorization="Bearer root").json()
    assert entry == own
    note = live.post(
        {"domains": ["code"], "note": "a test"},
        f"/v1/decisions/{entry['id']}/feedback",
        authorization="Bearer ann",
    )
    assert note.status_code == 201
    (again,) = _get(live, "flag=feedback&text=TEST")["data"]
    assert [given["note"] for given in again["feedback"]] == ["a test"]


def test_following_the_cursors_meets_each_entry_once(live: LiveServer) -> None:
    met: list[str] = []
    query = "limit=2"
    while True:
        page = _get(live, query, "ann")
        met += [entry["id"] for entry in page["data"]]
        assert page["has_more"] == (page["next_cursor"] is not None)
        if not page["has_more"]:
            break
        query = f"limit=2&cursor={page['next_cursor']}"
    assert len(met) == len(set(met)) == 4
    assert met == sorted(met, reverse=True)


def test_statistics_are_of_what_the_caller_may_see(live: LiveServer) -> None:
    everything = _get(live, "by=caller", path="/v1/decisions/stats")
    counts = {group["by"]["caller"]: group["requests"] for group in everything["groups"]}
    assert (everything["by"], counts) == (["caller"], {"ann": 4, "bob": 1})
    own = _get(live, "by=caller,rule&rule=support", "bob", "/v1/decisions/stats")
    assert [group["by"] for group in own["groups"]] == [{"caller": "bob", "rule": "support"}]
    assert own["groups"][0]["total"]["p50"] > 0
    assert _get(live, "", "bob", "/v1/decisions/stats")["by"] == ["domain", "mode"]
    (one,) = _get(live, "by=", path="/v1/decisions/stats")["groups"]
    assert (one["requests"], one["by"]) == (5, {})
    (quick,) = _get(live, "by=&quantiles=false", path="/v1/decisions/stats")["groups"]
    assert quick == one | dict.fromkeys(("first_token", "total", "gateway"), NO_QUANTILES)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=many", "limit"),
        ("limit=1&limit=2", "limit"),
        ("limit=", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=WzEsMl0&cursor=WzEsMl0", "cursor"),
        ("since=yesterday", "since"),
        ("until=", "until"),
        ("mode=fast", "mode"),
        ("flag=failed", "flag"),
        ("domain=medical:2", "domain"),
        ("caller=bob", "caller"),
        ("colour=red", "colour"),
        ("rule=a&rule=b", "rule"),
    ],
)
def test_a_wrong_parameter_is_a_400_that_names_it(live: LiveServer, query: str, param: str) -> None:
    answer = live.get(f"/v1/decisions?{query}", authorization="Bearer ann")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("by=colour", "by"),
        ("quantiles=no", "quantiles"),
        ("quantiles=true&quantiles=true", "quantiles"),
    ],
)
def test_a_wrong_parameter_of_the_statistics_is_a_400_that_names_it(
    live: LiveServer, query: str, param: str
) -> None:
    answer = live.get(f"/v1/decisions/stats?{query}", authorization="Bearer ann")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
