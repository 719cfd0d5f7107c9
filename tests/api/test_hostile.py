"""Hostile requests: each gets its error and nothing else happens; no secret comes out anywhere."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config import AuthConfig, GatewayConfig, KeyConfig, ServerConfig
from gateway.grants import ALL_SCOPES
from tests.api.hostile import BASE, HELLO, MESSAGES, TABLE, Hostile, said

LARGEST = 1_000_000


@pytest.fixture(scope="module")
def target(launch: Any, make_config: Callable[..., GatewayConfig]) -> Iterator[Any]:
    with launch(make_config(server=ServerConfig(max_body_bytes=LARGEST))) as live:
        yield live


def send(live: Any, case: Hostile) -> tuple[http.client.HTTPResponse, bytes]:
    """Send bytes that no client library would, on a connection of their own."""
    place = urlsplit(live.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=20)
    connection.putrequest(case.method, case.path, skip_accept_encoding=True)
    for name, value in case.headers:
        connection.putheader(name.decode(), value)
    connection.putheader("content-length", str(len(case.body)))
    connection.endheaders()
    # Refused before all of it was sent, where it fails; the answer is there all the same.
    with contextlib.suppress(OSError):
        connection.send(case.body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def test_the_table_is_long_and_says_each_thing_once() -> None:
    names = [case.name for case in TABLE]

    assert len(names) >= 150
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_a_hostile_request_is_answered_and_forgotten(target: Any, case: Hostile) -> None:
    answer, content = send(target, case)

    assert answer.status == case.status, content[:300]
    assert answer.headers.get_all("x-evil") is None
    if case.status >= 400:
        error = json.loads(content)["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        theirs = case.path.startswith(MESSAGES) and case.status == 404
        expected = "not_found_error" if theirs else "invalid_request_error"
        assert error["type"] == ("permission_error" if case.status == 403 else expected)
        assert len(error["message"]) < 600
        if case.code is not None:
            assert (error["param"], error["code"]) == (case.param, case.code)
        assert answer.headers["x-request-id"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert target.post(BASE).status_code == 200


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
BROKEN: dict[str, bytes] = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "another protocol": b"SSH-2.0-OpenSSH_9.0\r\n",
    "HTTP/0.9": b"GET /\r\n",
    "HTTP/9.9": b"GET / HTTP/9.9\r\nhost: x\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "a line break in a header": HEAD + b"x: a\nb: c\r\r\n\r\n",
    "a folded header": HEAD + b"x: a\r\n b\r\n\r\n",
    "a blank before a colon": HEAD + b"x : a\r\n\r\n",
    "a zero byte in a header": HEAD + b"x: a\x00b\r\n\r\n",
    "a header without a name": HEAD + b": a\r\n\r\n",
    "a header of a megabyte": HEAD + b"x: " + b"a" * 1_000_000 + b"\r\n\r\n",
    "a hundred thousand headers": HEAD + b"x: a\r\n" * 100_000 + b"\r\n",
    "a path of a megabyte": b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "two lengths": HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n12345",
    "a negative length": HEAD + b"content-length: -1\r\n\r\n",
    "a length in words": HEAD + b"content-length: five\r\n\r\n",
    "a length beyond every number": HEAD + b"content-length: " + b"9" * 100 + b"\r\n\r\n",
    "a length and chunks": HEAD
    + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown transfer encoding": HEAD + b"transfer-encoding: gzip\r\n\r\n",
    "a chunk of a negative size": HEAD + b"transfer-encoding: chunked\r\n\r\n-5\r\nabc\r\n",
    "a chunk of a huge size": HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "a target in other letters": "GET /ü HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
    "an absolute target": b"GET http://evil.example/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tunnel": b"CONNECT evil.example:443 HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=list(BROKEN))
def test_what_is_not_http_is_refused_and_nobody_else_notices(target: Any, sent: bytes) -> None:
    place = urlsplit(target.url)
    received = b""
    with socket.create_connection((place.hostname, place.port), 10) as client:
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(65536):
                received += piece
        except OSError:
            pass  # closed while we were still sending

    assert not received or received.split()[1][:1] == b"4", received[:200]
    assert target.post(BASE).status_code == 200


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = (
    "model messages temperature top_p n stop stream stream_options seed max_tokens tools tool_choice "
    "logprobs top_logprobs logit_bias response_format user metadata prompt echo best_of suffix "
    "structured_outputs guided_json min_tokens top_k stop_token_ids functions request policy "
    "input instructions text include max_output_tokens previous_response_id store system "
    "stop_sequences output_config"
).split()
BODIES = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5)


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    fields=BODIES,
    path=st.sampled_from(
        [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
            "/v1/decisions/explain",
        ]
    ),
    whole=st.booleans(),
)
def test_whatever_is_sent_is_no_fault_of_ours(
    target: Any, fields: dict[str, Any], path: str, whole: bool
) -> None:
    chats = path.startswith(("/v1/chat", "/v1/messages"))
    base = BASE if chats else {"model": "scripted", "prompt": "a", "input": "a"}
    base = {**base, "max_tokens": 9} if path == "/v1/messages" else base
    body = {**base, **fields} if whole else fields

    answer = target.post(body, path)

    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert sorted(answer.json()["error"]) == ["code", "message", "param", "type"]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=st.binary(max_size=200))
def test_whatever_bytes_are_sent_are_no_fault_of_ours(target: Any, body: bytes) -> None:
    assert target.post(body).status_code == 400


# ---- secrets --------------------------------------------------------------------------------------

KEY = "sk-planted-key-5b1f7c"
WRONG = "sk-planted-wrong-key-77ac"
PROMPT = "planted-prompt-d41d8c"
ANSWER = "planted-answer-98f00b"
FORGED = "planted-line-e42f8a"
SECRETS = (KEY, WRONG, PROMPT, ANSWER)


def test_nothing_that_was_planted_comes_out_where_it_should_not(
    launch: Any,
    make_config: Callable[..., GatewayConfig],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = (KeyConfig("ann", hashlib.sha256(KEY.encode()).hexdigest(), scopes=tuple(ALL_SCOPES)),)
    config = make_config(
        {"replies": {"broken": ANSWER, "": f"{ANSWER} and more"}, "fail_after": 3},
        auth=AuthConfig(keys, protect_metrics=True),
    )
    with launch(config) as live:
        seen = planted(live)
        metrics = live.get("/metrics", authorization=f"Bearer {KEY}").text
        decision = live.last().decision.decision_id
        shown = live.get(f"/v1/decisions/{decision}", authorization=f"Bearer {KEY}").text
    output = capfd.readouterr()
    folder = Path(config.audit.url.removeprefix("sqlite:///")).parent
    stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())

    sinks = {
        "errors": "\n".join(seen),
        "standard output": output.out,
        "standard error": output.err,
        "library logs": caplog.text,
        "metrics": metrics,
        "a decision": shown,
        "the database": stored.decode("latin-1"),
    }
    for name, sink in sinks.items():
        for secret in SECRETS:
            assert secret not in sink, f"{secret} is in {name}"
            assert hashlib.sha256(secret.encode()).hexdigest() not in sink, name
    assert stored
    lines = [line for line in output.out.splitlines() if line.startswith("{")]
    assert len(lines) >= 5
    for line in lines:
        assert json.loads(line)["event"] != FORGED


def planted(live: Any) -> list[str]:
    """Send what is secret everywhere; returns all error bodies and headers that came back."""
    right, wrong = f"Bearer {KEY}", f"Bearer {WRONG}"
    forged = f'{PROMPT}\n{{"event": "{FORGED}"}}\u2028\x1b[2J'
    asks: list[tuple[Any, dict[str, str]]] = [
        ({**BASE, "messages": said(forged)}, {"authorization": right}),
        ({**BASE, "messages": said(f"{PROMPT} broken"), "stream": True}, {"authorization": right}),
        ({**BASE, "messages": said(f"{PROMPT} forbidden")}, {"authorization": right}),
        ({**BASE, "user": f'a\n{{"event": "{FORGED}"}}'}, {"authorization": right}),
        ({**BASE, "messages": said(PROMPT * 10_000)}, {"authorization": right}),
        ({**BASE, "messages": said(PROMPT), "temperature": "x"}, {"authorization": right}),
        (
            {**BASE, "messages": [{"role": "user", "content": {PROMPT: 1}}]},
            {"authorization": right},
        ),
        ({**BASE, "messages": HELLO}, {"authorization": wrong}),
        ({**BASE, "messages": said(PROMPT)}, {"authorization": f"Basic {KEY}"}),
        ({**BASE, "messages": said(PROMPT)}, {"x-api-key": KEY}),
        (f'{{"messages": "{PROMPT}'.encode(), {"authorization": right}),
    ]
    seen = []
    for body, headers in asks:
        answer = live.post(body, **headers)
        if answer.status_code >= 400:
            seen.append(f"{answer.text}\n{answer.headers}")
        else:
            seen.append(str(answer.headers))
    assert len(live.entries()) >= 3
    return seen
