"""Evidence over HTTP: an alarm demotes the next request, everybody can see why, an administrator clears."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from gateway.config import AuthConfig, EvidenceConfig, KeyConfig

ADMIN, ANN = "sk-admin", "sk-ann"
AUTH = AuthConfig(
    tuple(
        KeyConfig(name, hashlib.sha256(key.encode()).hexdigest(), admin=key == ADMIN)
        for name, key in (("ada", ADMIN), ("ann", ANN))
    )
)
ASK = {"model": "scripted", "messages": [{"role": "user", "content": "write a function"}]}
SKEWED = {"tally": {"num_tokens": 1, "log_factors": {"leak": 5.0}}}
IMPOSSIBLE = {"tally": {"num_tokens": 1, "num_impossible": 1}}
SOON = EvidenceConfig(poll_seconds=0.05)


def ask(live: Any, **headers: str) -> Any:
    return live.post(ASK, authorization=f"Bearer {ANN}", **headers)


def cells(live: Any, key: str = ADMIN) -> Any:
    return live.get("/v1/evidence", authorization=f"Bearer {key}")


def clear(live: Any, cell: str, body: Any, key: str = ADMIN) -> Any:
    return live.post(body, f"/v1/evidence/{cell}/clear", authorization=f"Bearer {key}")


def until(question: Callable[[], Any], *, seconds: float = 10.0) -> Any:
    """What the question answers, once that is something."""
    deadline = time.monotonic() + seconds
    while not (found := question()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
    return found


def demoted(live: Any) -> list[Any]:
    return [cell for cell in cells(live).json()["data"] if cell["state"] == "demoted"]


def test_answers_that_leave_the_targets_law_are_decoded_standard_until_somebody_clears(
    start: Any,
) -> None:
    live = start(SKEWED, auth=AUTH, evidence=SOON)
    before = ask(live)
    assert before.headers["x-draftgate-mode"] == "speculative"
    (cell,) = until(lambda: demoted(live))
    assert cell["cell"] == {
        "domain": "none",
        "mode": "speculative",
        "verifier": "coupled",
        "model": "scripted",
        "draft": "suffix",
    }
    assert cell["log10_e"] > 6
    assert cell["last_event"]["cause"] == "e_value"
    assert cell["last_event"]["decision_id"] == before.headers["x-draftgate-decision-id"]
    # Before the next answer: its evidence is as bad, and raises an alarm of its own cell.
    counted = 'draftgate_evidence_alarms_total{cause="e_value"} 1.0'
    metrics = until(lambda: text if counted in (text := live.get("/metrics").text) else None)
    assert "draftgate_demoted_cells 1.0" in metrics

    after = ask(live)
    assert after.headers["x-draftgate-mode"] == "standard"
    assert after.headers["x-draftgate-rule"] == "code"
    decision = live.entry(after.headers["x-draftgate-decision-id"]).decision.decision
    line = decision.trace[-1]
    assert (line.kind, line.rule, decision.draft) == ("evidence", cell["id"], None)
    explained = live.post(
        {"request": ASK}, "/v1/decisions/explain", authorization=f"Bearer {ANN}"
    ).json()["decision"]
    assert explained["mode"] == "standard"
    assert explained["trace"][-1]["kind"] == "evidence"
    ready = live.get("/readyz")
    assert ready.status_code == 200
    assert any(cell["id"] in warning for warning in ready.json()["warnings"])

    cleared = clear(live, cell["id"], {"reason": "The draft was rebuilt."})
    assert cleared.status_code == 200
    assert cleared.json()["event"]["by"] == "ada"
    again = ask(live)
    assert again.headers["x-draftgate-mode"] == "speculative"
    found = {each["id"]: each for each in cells(live).json()["data"]}
    assert found[cell["id"]]["requests"] >= 1
    # The new answer is new evidence.
    (cell,) = until(lambda: demoted(live))
    assert cell["last_event"]["happened_at"] > cleared.json()["event"]["happened_at"]


def test_a_restart_and_another_gateway_have_the_demotion_before_their_first_request(
    make_config: Any, launch: Any
) -> None:
    config = make_config(IMPOSSIBLE, auth=AUTH, evidence=SOON)
    with launch(config) as one:
        ask(one)
        (cell,) = until(lambda: demoted(one))
        assert cell["last_event"]["cause"] == "impossible_token"
        with launch(config) as two:
            assert ask(two).headers["x-draftgate-mode"] == "standard"
            assert clear(two, cell["id"], {"reason": "mended"}).status_code == 200
            until(lambda: not demoted(one))
        ask(one)
        until(lambda: demoted(one))
    with launch(config) as three:
        assert ask(three).headers["x-draftgate-mode"] == "standard"


def test_evidence_is_for_administrators(start: Any) -> None:
    live = start(auth=AUTH)
    assert cells(live, ANN).status_code == 403
    assert clear(live, "other", {"reason": "x"}, ANN).status_code == 403
    assert cells(live).json() == {"object": "list", "data": []}


@pytest.mark.parametrize(
    ("cell", "body", "status", "param"),
    [
        ("nowhere", {"reason": "x"}, 404, "cell"),
        ("nowhere", {"reason": ""}, 400, "reason"),
        ("nowhere", {"reason": "x" * 5000}, 400, "reason"),
        ("nowhere", {}, 400, "reason"),
        ("nowhere", {"reason": "x", "by": "eve"}, 400, "by"),
    ],
)
def test_what_cannot_be_cleared_says_why(
    quiet: Any, cell: str, body: Any, status: int, param: str
) -> None:
    response = clear(quiet, cell, body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


@pytest.fixture(scope="module")
def quiet(launch: Any, make_config: Any) -> Iterator[Any]:
    with launch(make_config(auth=AUTH, evidence=SOON)) as live:
        yield live


def test_a_cell_that_is_not_in_alarm_is_not_cleared(quiet: Any) -> None:
    ask(quiet)
    (cell,) = until(lambda: cells(quiet).json()["data"])
    assert (cell["state"], cell["measured_tokens"]) == ("ok", 0)
    response = clear(quiet, cell["id"], {"reason": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "conflict")


def test_without_evidence_nothing_is_demoted_and_the_routes_say_so(start: Any) -> None:
    live = start(IMPOSSIBLE, auth=AUTH, evidence=EvidenceConfig(enabled=False))
    for _ in range(2):
        assert ask(live).headers["x-draftgate-mode"] == "speculative"
    response = cells(live)
    assert response.status_code == 404
    assert "evidence.enabled" in response.json()["error"]["message"]
    assert "draftgate_demoted_cells" not in live.get("/metrics").text


def test_an_alarm_reaches_the_webhook_signed_after_failures(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[tuple[bytes, str]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((body, self.headers["x-draftgate-signature"]))
            self.send_response(500 if len(got) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setenv("DRAFTGATE_WEBHOOK_KEY", "secret")
    with HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            url = f"http://127.0.0.1:{receiver.server_port}/alarms"
            live = start(IMPOSSIBLE, auth=AUTH, evidence=EvidenceConfig(webhook=url))
            assert ask(live).status_code == 200
            until(lambda: len(got) == 2)
        finally:
            receiver.shutdown()
            thread.join()
    (first, _), (body, signed) = got
    assert first == body
    assert signed == "sha256=" + hmac.new(b"secret", body, hashlib.sha256).hexdigest()
    found = json.loads(body)
    assert found["type"] == "evidence.alarm"
    assert found["event"]["cause"] == "impossible_token"
    assert found["cell_id"] in {cell["id"] for cell in demoted(live)}


def test_a_failed_attestation_demotes_what_ran(start: Any) -> None:
    claims = {"execution": {"num_draft_tokens": 9, "num_accepted_tokens": 0}}
    live = start(claims, auth=AUTH, evidence=SOON)
    ask(live)
    (cell,) = until(lambda: demoted(live))
    assert (cell["last_event"]["cause"], cell["attestation_failures"]) == ("attestation_failed", 1)
