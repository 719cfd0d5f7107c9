"""The policy of a running gateway: edited, applied, rolled back, and never half in force."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.classification.contract import SHIPPED_CONTRACT, read_contract
from gateway.config import AuthConfig, ClassificationConfig, GatewayConfig, KeyConfig
from gateway.errors import ConfigError
from gateway.runtime import running
from gateway.types import Caller, ChatRequest, Message

ADMIN, USER = "sk-admin", "sk-user"
AUTH = AuthConfig(
    (
        KeyConfig("ada", hashlib.sha256(ADMIN.encode()).hexdigest(), admin=True),
        KeyConfig("bob", hashlib.sha256(USER.encode()).hexdigest()),
    )
)
STANDARD = {"x-draftgate-mode": "standard"}
MODES = {"even": "standard", "odd": "speculative"}
ASK = {"model": "scripted", "messages": [{"role": "user", "content": "write a function"}]}
RELOADS = 300


def text(name: str, mode: str = "standard") -> str:
    return f"version: 1\nname: {name}\ndefault: {{mode: {mode}}}\n"


class Desk:
    """An administrator's desk: one live gateway, and requests with a key."""

    def __init__(self, live: Any) -> None:
        self.live = live
        self.path: Path = live.config.policy
        self.client = httpx.Client(
            base_url=live.url, headers={"authorization": f"Bearer {ADMIN}"}, timeout=20
        )

    def active(self) -> dict[str, Any]:
        return self.client.get("/v1/policy").json()

    def apply(self, policy: str, *, replaces: str | None = None, **other: Any) -> httpx.Response:
        etag = replaces or self.active()["hash"]
        body = {"policy": policy, **other}
        return self.client.put("/v1/policy", json=body, headers={"if-match": f'"{etag}"'})

    def until(self, name: str) -> None:
        deadline = time.monotonic() + 10
        while self.active()["name"] != name:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def desk(launch: Any, make_config: Callable[..., GatewayConfig]) -> Iterator[Desk]:
    config = make_config(auth=AUTH, policy=text("one"), policy_watch_seconds=0.05)
    with launch(config) as live:
        desk = Desk(live)
        yield desk
        desk.client.close()


def test_what_is_in_force_is_shown_with_its_etag(desk: Desk) -> None:
    response = desk.client.get("/v1/policy")
    body = response.json()
    assert (body["name"], body["text"], body["warning"]) == ("one", text("one"), None)
    assert response.headers["etag"] == f'"{body["hash"]}"'


def test_an_edit_comes_into_force_while_answers_run(desk: Desk) -> None:
    desk.path.write_text(text("two", "speculative"))
    desk.until("two")
    response = desk.client.post("/v1/chat/completions", json=ASK)
    assert response.headers["x-draftgate-mode"] == "speculative"
    (now, start) = desk.client.get("/v1/policy/versions").json()["data"]
    assert (now["source"], now["active"], start["source"], start["active"]) == (
        "file",
        True,
        "start",
        False,
    )


def test_a_broken_edit_keeps_the_last_good_one_and_readiness_says_why(desk: Desk) -> None:
    desk.path.write_text("version: 1\nname: two\nrulez: []\n")
    deadline = time.monotonic() + 10
    while not (ready := desk.live.get("/readyz")).json()["warnings"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert ready.status_code == 200
    assert ready.json()["policy"]["name"] == "one"
    assert "policy.yaml:3:1: unknown" in ready.json()["warnings"][0]
    assert "draftgate_policy_reload_failed 1.0" in desk.live.get("/metrics").text


def test_apply_roll_back_and_the_versions_between(desk: Desk) -> None:
    first = desk.active()["hash"]
    applied = desk.apply(text("two"))
    assert applied.status_code == 200
    assert desk.path.read_text() == text("two")

    stale = desk.apply(text("three"), replaces=first)
    assert (stale.status_code, stale.json()["error"]["code"]) == (412, "precondition_failed")

    back = desk.client.post(
        "/v1/policy/rollback",
        json={"hash": first},
        headers={"if-match": applied.headers["etag"]},
    )
    assert back.json()["hash"] == first
    versions = desk.client.get("/v1/policy/versions").json()["data"]
    assert [(v["name"], v["source"], v["by"]) for v in versions] == [
        ("one", "rollback", "ada"),
        ("two", "api", "ada"),
        ("one", "start", ""),
    ]
    old = desk.client.get(f"/v1/policy/versions/{applied.json()['hash']}").json()
    assert old["files"] == {"policy.yaml": text("two")}


def test_a_candidate_is_validated_with_every_problem_in_its_place(desk: Desk) -> None:
    good = desk.client.post("/v1/policy/validate", json={"policy": text("two")}).json()
    assert (good["valid"], good["problems"]) == (True, [])
    broken = "version: 1\nname: two\nrulez: []\ndefault: {mode: fast}\n"
    bad = desk.client.post("/v1/policy/validate", json={"policy": broken}).json()
    assert not bad["valid"]
    assert [(p["file"], p["line"]) for p in bad["problems"]] == [
        ("policy.yaml", 3),
        ("policy.yaml", 4),
    ]
    refused = desk.apply(broken)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_policy")
    assert "policy.yaml:4" in refused.json()["error"]["message"]
    assert desk.active()["name"] == "one"


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("PUT", "/v1/policy", {"policy": "x"}, {}, 428),
        ("PUT", "/v1/policy", {"policy": 1}, {"if-match": "x"}, 400),
        ("PUT", "/v1/policy", {"policy": "x", "path": "/etc"}, {"if-match": "x"}, 400),
        ("PUT", "/v1/policy", {"policy": ""}, {"if-match": "ACTIVE"}, 400),
        ("POST", "/v1/policy/rollback", {"hash": "../../etc/passwd"}, {"if-match": "x"}, 400),
        ("POST", "/v1/policy/rollback", {"hash": "0" * 64}, {"if-match": "ACTIVE"}, 404),
        ("GET", "/v1/policy/versions/..%2f..%2fetc", None, {}, 404),
        ("GET", "/v1/policy/versions/abc", None, {}, 400),
        ("GET", f"/v1/policy/versions/{'0' * 64}", None, {}, 404),
        ("POST", "/v1/policy/validate", {}, {}, 400),
    ],
)
def test_a_wrong_request_is_an_error_object_and_changes_nothing(
    desk: Desk, method: str, path: str, body: Any, headers: dict[str, str], status: int
) -> None:
    headers = {k: desk.active()["hash"] if v == "ACTIVE" else v for k, v in headers.items()}
    response = desk.client.request(method, path, json=body, headers=headers)
    assert response.status_code == status
    assert list(response.json()["error"]) == ["message", "type", "param", "code"]
    assert desk.active()["name"] == "one"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/policy"),
        ("GET", "/v1/policy/versions"),
        ("GET", f"/v1/policy/versions/{'0' * 64}"),
        ("PUT", "/v1/policy"),
        ("POST", "/v1/policy/validate"),
        ("POST", "/v1/policy/rollback"),
    ],
)
def test_only_an_administrator_gets_in(desk: Desk, server: Any, method: str, path: str) -> None:
    bob = {"authorization": f"Bearer {USER}"}
    assert httpx.request(method, desk.live.url + path, headers=bob).status_code == 403
    assert httpx.request(method, desk.live.url + path).status_code == 401
    # Without configured keys everybody is anonymous, and nobody an administrator.
    assert httpx.request(method, server.url + path).status_code == 403


async def test_requests_meet_whole_policies_while_the_file_changes_under_them(
    launch: Any, make_config: Callable[..., GatewayConfig]
) -> None:
    texts, hashes = _two_policies()
    config = make_config(policy=texts["even"], policy_watch_seconds=0.001)
    with launch(config) as live:
        done = asyncio.Event()
        async with httpx.AsyncClient(base_url=live.url, timeout=30) as client:
            asking = [asyncio.create_task(_ask(client, done, hashes)) for _ in range(2)]
            for i in range(100):
                _replace(live.config.policy, _edition(texts, i))
                await asyncio.sleep(0.04)
            done.set()
            seen = [name for task in asking for name in await task]
    assert set(seen) == {"even", "odd"}


async def test_many_reloads_under_load_show_no_request_a_mix(
    make_config: Callable[..., GatewayConfig],
) -> None:
    """Every answer is decided by one whole policy that was good; none fails."""
    texts, hashes = _two_policies()
    config = make_config(policy=texts["even"], policy_watch_seconds=0)
    request = ChatRequest(model="scripted", messages=(Message("user", "write a function"),))
    seen: list[tuple[str, str, str]] = []
    async with running(config) as (gateway, keeper, *_):
        done = asyncio.Event()

        async def ask() -> None:
            while not done.is_set():
                reply = await gateway.respond(request, Caller())
                decision = reply.receipt.decision
                async for _ in reply:
                    pass
                seen.append((hashes[decision.policy_version], decision.rule, decision.mode.value))
                await asyncio.sleep(0.03)  # leaves the processor to the reloads

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        good = 0
        for i in range(RELOADS):
            _replace(config.policy, _edition(texts, i))
            good += await keeper.reload("file")
        done.set()
        await asyncio.gather(*asking)
    assert good == sum(i % 7 != 6 for i in range(RELOADS))
    assert len(seen) > RELOADS / 5
    assert set(seen) == {(name, f"rule-{name}", mode) for name, mode in MODES.items()}


def _two_policies() -> tuple[dict[str, str], dict[str, str]]:
    """Their texts by name, and their names by the hash that people see."""
    texts = {name: _both(name, mode) for name, mode in MODES.items()}
    return texts, {hashlib.sha256(t.encode()).hexdigest()[:12]: n for n, t in texts.items()}


def _edition(texts: dict[str, str], number: int) -> str:
    return "version: 1\nname: [" if number % 7 == 6 else texts[("even", "odd")[number % 2]]


def _replace(path: Path | None, content: str) -> None:
    assert path is not None
    new = path.with_name("new")
    new.write_text(content)
    new.rename(path)


def _both(name: str, mode: str) -> str:
    """A policy whose two parts must be seen together: the default's mode and the rule's name."""
    rule = f"{{id: rule-{name}, when: {{keyword: [function]}}, decide: {{mode: {mode}}}}}"
    return f"version: 1\nname: {name}\nrules:\n  - {rule}\n"


async def _ask(client: httpx.AsyncClient, done: asyncio.Event, hashes: dict[str, str]) -> list[str]:
    seen = []
    while not done.is_set():
        response = await client.post("/v1/chat/completions", json=ASK)
        assert response.status_code == 200, response.text
        name = hashes[response.headers["x-draftgate-policy"]]
        assert response.headers["x-draftgate-rule"] == f"rule-{name}"
        assert response.headers["x-draftgate-mode"] == MODES[name]
        seen.append(name)
    return seen


def test_a_dry_run_says_what_would_be_decided_and_records_nothing(desk: Desk) -> None:
    ask = {"request": ASK}
    now = desk.client.post("/v1/decisions/explain", json=ask).json()
    assert (now["decision"]["mode"], now["decision"]["rule"]) == ("standard", "default")
    candidate = _both("try", "speculative")
    then = desk.client.post("/v1/decisions/explain", json={**ask, "policy": candidate}).json()
    assert (then["decision"]["mode"], then["decision"]["rule"]) == ("speculative", "rule-try")
    assert [rule["matched"] for rule in then["decision"]["trace"]] == [True]
    wish = desk.client.post(
        "/v1/decisions/explain", json={**ask, "policy": candidate}, headers=STANDARD
    ).json()
    assert wish["decision"]["mode"] == "standard"
    assert desk.active()["name"] == "one"
    assert desk.live.entries() == ()


@pytest.mark.parametrize(
    ("body", "key", "status", "code"),
    [
        ({"request": ASK, "policy": "version: 9"}, ADMIN, 400, "invalid_policy"),
        ({"request": ASK, "policy": text("x")}, USER, 403, "permission_denied"),
        ({"request": {"model": "scripted"}}, USER, 400, "invalid_value"),
        ({"request": {**ASK, "model": "none"}}, USER, 404, "model_not_found"),
        ({"request": {**ASK, "temperature": "hot"}}, USER, 400, "invalid_type"),
    ],
)
def test_a_dry_run_of_something_wrong(
    desk: Desk, body: Any, key: str, status: int, code: str
) -> None:
    headers = {"authorization": f"Bearer {key}"}
    response = desk.client.post("/v1/decisions/explain", json=body, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_a_hangup_signal_reads_the_policy_again(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(text("one"))
    config = tmp_path / "config.yaml"
    config.write_text(
        "server: {port: 0}\n"
        "backends: {demo: {type: scripted, options: {replies: {'': Fine.}}}}\n"
        "policy: policy.yaml\npolicy_watch_seconds: 0\nclassifiers: []\n"
        f"audit: {{url: 'sqlite:///{tmp_path / 'd.db'}'}}\n"
    )
    start = "from gateway.cli import main; main()"
    command = [sys.executable, "-c", start, "serve", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            (tmp_path / "policy.yaml").write_text(text("two"))
            time.sleep(0.2)
            assert httpx.get(f"{url}/readyz").json()["policy"]["name"] == "one"
            process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 10
            while httpx.get(f"{url}/readyz").json()["policy"]["name"] != "two":
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            process.terminate()


MEDICAL = """\
version: 1
name: bans
rules:
  - id: medical
    ban: [speculative, hybrid]
    when: {domain: {is: medical, min_probability: THRESHOLD}}
"""


def contracted(
    make_config: Callable[..., GatewayConfig], threshold: str, contract: Path | None = None
) -> GatewayConfig:
    config = make_config(
        policy=MEDICAL.replace("THRESHOLD", threshold),
        auth=AUTH,
        classification=ClassificationConfig(contract),
    )
    return msgspec.structs.replace(config, classifiers=("domain",))


def test_bans_are_shown_with_what_the_contract_says_of_them(
    launch: Any, make_config: Callable[..., GatewayConfig]
) -> None:
    shipped = read_contract(SHIPPED_CONTRACT)
    with launch(contracted(make_config, "0.05")) as live:
        body = live.get("/v1/policy", authorization=f"Bearer {ADMIN}").json()
        warnings = live.get("/readyz").json()["warnings"]
        metrics = live.get("/metrics").text

    (ban,) = body["bans"]
    assert (ban["threshold"], ban["contract_threshold"]) == (0.05, shipped.domains[0].threshold)
    assert ban["recall"] == msgspec.to_builtins(shipped.domains[0].recall)
    assert ban["classifier_hash"] == shipped.classifier_hash
    assert warnings == []
    assert 'draftgate_classifier_drift{domain="medical"} NaN' in metrics


def test_a_looser_ban_is_shown_as_without_contract_and_readiness_warns(
    launch: Any, make_config: Callable[..., GatewayConfig]
) -> None:
    with launch(contracted(make_config, "0.9")) as live:
        body = live.get("/v1/policy", authorization=f"Bearer {ADMIN}").json()
        ready = live.get("/readyz")

    assert body["bans"][0]["note"] == "no contract for this threshold"
    assert body["bans"][0]["recall"] is None
    assert ready.status_code == 200
    assert "rule 'medical': no contract for this threshold" in ready.json()["warnings"][0]


def test_a_contract_about_other_weights_is_a_warning(
    launch: Any, make_config: Callable[..., GatewayConfig], tmp_path: Path
) -> None:
    path = tmp_path / "contract.json"
    other = msgspec.structs.replace(read_contract(SHIPPED_CONTRACT), classifier_hash="d" * 64)
    path.write_bytes(other.dump())
    with launch(contracted(make_config, "0.1", path)) as live:
        warnings = live.get("/readyz").json()["warnings"]

    assert "classifier dddddddddddd, which is not loaded" in warnings[0]


async def test_a_file_that_is_no_contract_stops_the_start(
    make_config: Callable[..., GatewayConfig], tmp_path: Path
) -> None:
    path = tmp_path / "contract.json"
    path.write_text("{}")

    with pytest.raises(ConfigError, match=r"contract\.json: not a contract"):
        async with running(contracted(make_config, "0.1", path)):
            pass
