"""Bad input: always the OpenAI error object with all four keys, never a traceback."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.api.unsupported import NEUTRAL
from gateway.audit.record import DecisionRecord
from gateway.audit.store import DecisionStore
from gateway.config import ServerConfig
from gateway.errors import AuditUnavailable
from gateway.service import Gateway

HELLO = [{"role": "user", "content": "hello"}]


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert status == response.status_code, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert "Traceback" not in response.text
    body = response.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"]
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    result: dict[str, Any] = error
    return result


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": None}, "messages", "invalid_type"),
        ({"messages": "hello"}, "messages", "invalid_type"),
        ({"messages": [1]}, "messages[0]", "invalid_type"),
        ({"messages": [{}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        (
            {"messages": [{"role": "user", "content": None}]},
            "messages[0].content",
            "missing_required_parameter",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "boss", "content": "a"}]}, "messages[0].role", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0]",
            "unsupported_parameter",
        ),
        (
            {"messages": [*HELLO, {"role": "user", "content": [{"type": "text"}]}]},
            "messages[1].content[0].text",
            "missing_required_parameter",
        ),
        ({"model": None}, "model", "invalid_type"),
        ({"model": ""}, "model", "invalid_value"),
        ({"model": 7}, "model", "invalid_type"),
        ({"temperature": "0.5"}, "temperature", "invalid_type"),
        ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
        ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "decimal_below_min_value"),
        ({"top_p": 1.01}, "top_p", "decimal_above_max_value"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": 9}, "n", "integer_above_max_value"),
        ({"n": "1"}, "n", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "integer_below_min_value"),
        ({"stream": "true"}, "stream", "invalid_type"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"seed": 1.5}, "seed", "invalid_type"),
        ({"presence_penalty": 3}, "presence_penalty", "decimal_above_max_value"),
        ({"frequency_penalty": -3}, "frequency_penalty", "decimal_below_min_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "decimal_below_min_value"),
        ({"min_p": 2}, "min_p", "decimal_above_max_value"),
        ({"top_k": -2}, "top_k", "integer_below_min_value"),
        ({"logit_bias": {"hello": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]", "decimal_above_max_value"),
        ({"logit_bias": []}, "logit_bias", "invalid_type"),
        ({"logprobs": 1}, "logprobs", "invalid_type"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tool_choice": "auto"}, "tool_choice", "invalid_value"),
        ({"min_tokens": 2}, "min_tokens", "unsupported_parameter"),
        ({"functions": [{}]}, "functions", "unsupported_parameter"),
        ({"function_call": "auto"}, "function_call", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"audio": {"voice": "alloy"}}, "audio", "unsupported_parameter"),
        ({"prediction": {"type": "content"}}, "prediction", "unsupported_parameter"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
    ],
)
def test_a_bad_value_is_a_400_that_names_the_parameter(
    server: Any, fields: dict[str, Any], param: str, code: str
) -> None:
    response = server.post({"model": "scripted", "messages": HELLO, **fields})

    error = error_of(response, 400)

    assert (param, code) == (error["param"], error["code"]), error
    assert error["type"] == "invalid_request_error"


MEANINGFUL: dict[str, Any] = {
    "add_generation_prompt": False,
    "allowed_token_ids": [1],
    "best_of": 2,
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": False},
    "continue_final_message": True,
    "documents": [{"text": "a"}],
    "dry_multiplier": 0.8,
    "ebnf": "root ::= 'a'",
    "enable_thinking": False,
    "format": "json",
    "grammar": "root ::= 'a'",
    "guided_choice": ["a"],
    "guided_json": {"type": "integer"},
    "guided_of_next_year": 1,
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "json_schema": {},
    "length_penalty": 1.2,
    "logits_processors": ["x"],
    "max_length": 9,
    "max_new_tokens": 9,
    "min_new_tokens": 1,
    "min_tokens": 1,
    "mirostat": 2,
    "mirostat_eta": 0.2,
    "mirostat_mode": 1,
    "mirostat_tau": 3,
    "no_repeat_ngram_size": 2,
    "prompt_logprobs": 0,
    "regex": "a+",
    "repeat_penalty": 1.1,
    "skip_special_tokens": False,
    "stop_token_ids": [2],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "top_a": 0.2,
    "truncate_prompt_tokens": 5,
    "typical_p": 0.9,
    "use_beam_search": True,
    "xtc_probability": 0.5,
}
"""Parameters of other servers that would change the answer."""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("name", MEANINGFUL)
def test_a_parameter_that_would_have_to_be_ignored_is_refused_by_name(
    server: Any, name: str, path: str
) -> None:
    prompt = {"messages": HELLO} if "chat" in path else {"prompt": "hello"}
    body = {"model": "scripted", **prompt}

    error = error_of(server.post({**body, name: MEANINGFUL[name]}, path), 400)

    assert (name, "unsupported_parameter") == (error["param"], error["code"])
    assert name in error["message"]
    assert server.post({**body, name: None}, path).status_code == 200


def test_every_unsupported_parameter_passes_with_a_value_that_asks_for_nothing(server: Any) -> None:
    for name, values in NEUTRAL.items():
        for value in (None, *values):
            response = server.post({"model": "scripted", "messages": HELLO, name: value})
            assert response.status_code == 200, (name, value)
    fields = {"typical_p": 1.0, "length_penalty": 1, "min_new_tokens": 0.0, "top_a": 0.0}
    assert server.post({"model": "scripted", "messages": HELLO, **fields}).status_code == 200


HUGE = "ab" * 30_000
LONG: dict[str, dict[str, Any]] = {
    "model": {"model": HUGE},
    "role": {"messages": [{"role": HUGE, "content": "a"}]},
    "type of a part": {"messages": [{"role": "user", "content": [{"type": HUGE}]}]},
    "key of logit_bias": {"logit_bias": {HUGE: 1}},
    "value in logit_bias": {"logit_bias": {"1": HUGE}},
    "name of a parameter": {f"guided_{HUGE}": 1},
    "name of an unknown one": {HUGE: 1, "n": 0},
    "value of an unsupported one": {"tools": [HUGE]},
    "number": {"temperature": HUGE},
    "stop": {"stop": [HUGE] * 5},
    "response format": {"response_format": {"type": HUGE}},
}


@pytest.mark.parametrize(
    "fields",
    LONG.values(),
    ids=LONG,
)
def test_an_error_repeats_no_long_text_of_the_client(server: Any, fields: dict[str, Any]) -> None:
    response = server.post({"model": "scripted", "messages": HELLO, **fields})

    error = error_of(response, response.status_code)
    assert 400 <= response.status_code < 500
    assert len(response.content) < 600
    assert HUGE[:100] not in error["message"]


@pytest.mark.parametrize("path", ["/v1/models/", "/nope/", "/v1/chat/completions/"])
def test_an_error_repeats_no_long_path(server: Any, path: str) -> None:
    response = server.get(path + HUGE[:20_000])

    error_of(response, 404)
    assert len(response.content) < 600


@pytest.mark.parametrize("field", ["model", "messages"])
def test_a_missing_field_is_named(server: Any, field: str) -> None:
    body = {"model": "scripted", "messages": HELLO}
    del body[field]

    error = error_of(server.post(body), 400)

    assert (field, "missing_required_parameter") == (error["param"], error["code"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no body"),
        (b"{", "not valid JSON"),
        (b"hello", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b'{"model": "\\ud800"}', "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"7", "must be a JSON object"),
        (b'{"temperature": NaN}', "NaN is not JSON"),
        (b'{"temperature": -Infinity}', "-Infinity is not JSON"),
        (b'{"temperature": 1e999}', "out of range"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_body_that_is_no_json_object_is_a_400(
    server: Any, body: bytes, message: str, path: str
) -> None:
    assert message in error_of(server.post(body, path), 400)["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "x"])
def test_the_content_type_does_not_matter(server: Any, kind: str) -> None:
    response = server.post({"model": "scripted", "messages": HELLO}, content_type=kind)

    assert response.status_code == 200


def test_an_unknown_model_is_a_404_that_lists_the_known_ones(server: Any) -> None:
    error = error_of(server.post({"model": "gpt\r\nx", "messages": HELLO}), 404)

    assert error["code"] == "model_not_found"
    assert "scripted" in error["message"]


def test_a_prompt_longer_than_the_context_is_a_400(server: Any) -> None:
    text = "word " * 5000
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}]}

    error = error_of(server.post(body), 400)

    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "4096" in error["message"]


def test_a_body_over_the_limit_is_a_413(start: Callable[..., Any]) -> None:
    live = start(server=ServerConfig(max_body_bytes=2000))
    body = {"model": "scripted", "messages": [{"role": "user", "content": "x" * 3000}]}

    assert error_of(live.post(body), 413)["code"] == "request_too_large"
    assert live.post({"model": "scripted", "messages": HELLO}).status_code == 200


def test_a_body_over_the_limit_without_a_length_is_a_413(start: Callable[..., Any]) -> None:
    live = start(server=ServerConfig(max_body_bytes=2000))
    place = urlsplit(live.url)
    with socket.create_connection((place.hostname, place.port), 10) as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            + b"fff\r\n"
            + b"x" * 0xFFF
            + b"\r\n0\r\n\r\n"
        )
        assert client.recv(4096)[:12] == b"HTTP/1.1 413"


@pytest.mark.parametrize("path", ["/", "/nope", "/v1", "/v1/nope", "/v1/chat/completions/x"])
def test_an_unknown_path_is_a_404(server: Any, path: str) -> None:
    assert error_of(server.get(path), 404)["code"] == "not_found"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_wrong_method_is_a_405(server: Any, path: str) -> None:
    response = server.get(path)

    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_a_429_with_retry_after(start: Callable[..., Any], stream: bool) -> None:
    live = start({"max_running": 0, "max_queued": 0})

    response = live.post({"model": "scripted", "messages": HELLO, "stream": stream})

    error = error_of(response, 429)
    assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
    assert response.headers["retry-after"] == "1"
    assert (
        live.entry(response.headers["x-draftgate-decision-id"]).outcome.finish_reasons[0] == "error"
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_chunk_is_a_500(start: Callable[..., Any], stream: bool) -> None:
    live = start({"fail_after": 0})

    response = live.post({"model": "scripted", "messages": HELLO, "stream": stream})

    assert error_of(response, 500)["code"] == "backend_failed"
    assert response.headers["x-draftgate-decision-id"]
    assert response.headers["x-should-retry"] == "false"


def test_a_failure_midway_is_a_500_without_a_stream(start: Callable[..., Any]) -> None:
    live = start({"fail_after": 2})

    response = live.post({"model": "scripted", "messages": HELLO})

    assert error_of(response, 500)["code"] == "backend_failed"
    entry = live.entry(response.headers["x-draftgate-decision-id"])
    assert entry.outcome.execution.usage.completion_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_cannot_be_recorded_is_a_503_and_generates_nothing(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async def full_disk(_: DecisionStore, record: DecisionRecord) -> None:
        raise AuditUnavailable("The decision could not be recorded: the disk is full.")

    live = start()
    monkeypatch.setattr(DecisionStore, "append_decision", full_disk)

    response = live.post({"model": "scripted", "messages": HELLO, "stream": stream})

    assert error_of(response, 503)["code"] == "audit_unavailable"
    assert response.headers["retry-after"] == "1"
    assert "x-draftgate-decision-id" not in response.headers
    metrics = live.get("/metrics").text
    assert 'draftgate_audit_failures_total{record="decision"} 1.0' in metrics
    assert "draftgate_tokens_total{" not in metrics
    assert live.entries() == ()


def test_a_bug_is_a_500_that_tells_the_client_nothing(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Gateway) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(Gateway, "models", broken)

    response = start().get("/v1/models")

    assert error_of(response, 500)["code"] == "internal_error"
    assert "secret" not in response.text
