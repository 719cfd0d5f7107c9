"""What callers see of their decisions, and what they say of them afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.archive import MAX_NOTE_CHARACTERS
from gateway.config import AuthConfig, GatewayConfig, KeyConfig

ADMIN, ANN, BOB = "sk-admin", "sk-ann", "sk-bob"
AUTH = AuthConfig(
    tuple(
        KeyConfig(name, hashlib.sha256(key.encode()).hexdigest(), admin=key == ADMIN)
        for name, key in (("ada", ADMIN), ("ann", ANN), ("bob", BOB))
    )
)
ASK = {"model": "scripted", "messages": [{"role": "user", "content": "write a function"}]}


@pytest.fixture(scope="module")
def live(launch: Any, make_config: Callable[..., GatewayConfig]) -> Iterator[Any]:
    with launch(make_config(auth=AUTH)) as live:
        yield live


@pytest.fixture(scope="module")
def decision_id(live: Any) -> str:
    """A decision of Ann's."""
    found: str = live.post(ASK, authorization=f"Bearer {ANN}").headers["x-draftgate-decision-id"]
    live.entry(found)
    return found


def give(live: Any, decision_id: str, body: Any, key: str = ANN) -> Any:
    path = f"/v1/decisions/{decision_id}/feedback"
    return live.post(body, path, authorization=f"Bearer {key}")


def show(live: Any, decision_id: str, key: str = ANN) -> Any:
    return live.get(f"/v1/decisions/{decision_id}", authorization=f"Bearer {key}")


def test_a_decision_is_shown_with_its_outcome(live: Any, decision_id: str) -> None:
    response = show(live, decision_id)

    body = response.json()
    assert (response.status_code, body["object"], body["id"]) == (200, "decision", decision_id)
    assert body["decision"]["caller"]["id"] == "ann"
    assert body["outcome"]["attestation"] == "ok"


def test_later_feedback_comes_after_earlier_and_both_stay(live: Any, decision_id: str) -> None:
    first = give(live, decision_id, {"domains": ["medical", "code", "medical"], "note": "a dose"})
    second = give(live, decision_id, {"domains": []}, key=ADMIN)

    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["feedback"]["domains"] == ["medical", "code"]
    given = show(live, decision_id).json()["feedback"]
    assert [(one["by"], one["domains"], one["note"]) for one in given[-2:]] == [
        ("ann", ["medical", "code"], "a dose"),
        ("ada", [], ""),
    ]
    assert live.entry(decision_id).feedback[-1].by == "ada"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"domains": ["medcal"]}, "domains"),
        ({"domains": "medical"}, "domains"),
        ({"domains": [1]}, "domains[0]"),
        ({"domains": ["code"] * 11}, "domains"),
        ({"note": "x"}, "domains"),
        ({"domains": [], "note": 1}, "note"),
        ({"domains": [], "note": "x" * (MAX_NOTE_CHARACTERS + 1)}, "note"),
        ({"domains": [], "label": "x"}, "label"),
        (b"[]", None),
        (b"", None),
        (b"{", None),
    ],
)
def test_wrong_feedback_is_a_400_that_names_the_parameter_and_keeps_nothing(
    live: Any, decision_id: str, body: Any, param: str | None
) -> None:
    before = show(live, decision_id).json()["feedback"]

    response = give(live, decision_id, body)

    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert show(live, decision_id).json()["feedback"] == before


@pytest.mark.parametrize("key", [BOB, ANN])
def test_what_is_not_there_and_what_is_not_yours_look_alike(
    live: Any, decision_id: str, key: str
) -> None:
    wanted = decision_id if key == BOB else "dec_none"

    for response in (show(live, wanted, key), give(live, wanted, {"domains": []}, key)):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "not_found"
        assert wanted in response.json()["error"]["message"]


def test_without_a_key_nobody_gets_in(live: Any, decision_id: str) -> None:
    assert live.get(f"/v1/decisions/{decision_id}").status_code == 401
    assert live.post({"domains": []}, f"/v1/decisions/{decision_id}/feedback").status_code == 401


def test_an_administrator_sees_all(live: Any, decision_id: str) -> None:
    assert show(live, decision_id, ADMIN).status_code == 200


def test_without_keys_everybody_is_the_one_caller(server: Any) -> None:
    decision_id = server.post(ASK).headers["x-draftgate-decision-id"]

    path = f"/v1/decisions/{decision_id}"
    assert server.post({"domains": ["code"]}, f"{path}/feedback").status_code == 201
    assert server.get(path).json()["feedback"][0]["by"] == "anonymous"


def test_a_note_with_strange_characters_is_kept_as_it_came(live: Any, decision_id: str) -> None:
    note = "naïve 🙂 \u0000 \u202e end"

    assert give(live, decision_id, {"domains": [], "note": note}).status_code == 201
    assert show(live, decision_id).json()["feedback"][-1]["note"] == note
