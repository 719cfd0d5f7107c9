from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

FIELDS = {
    "x-request-id",
    "x-draftgate-decision-id",
    "x-draftgate-mode",
    "x-draftgate-rule",
    "x-draftgate-policy",
    "x-draftgate-verifier",
}


def ask(text: str = "hello", /, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}


def test_the_answer_has_the_shape_of_a_chat_completion(server: Any) -> None:
    response = server.post(ask())
    body = response.json()

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert list(body) == [
        "id",
        "object",
        "created",
        "model",
        "choices",
        "usage",
        "system_fingerprint",
    ]
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "The answer is short.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 4,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize(
    ("text", "mode", "rule"),
    [
        ("write a function", "speculative", "code"),
        ("what dose of this function", "standard", "medical"),
        ("I want a refund", "hybrid", "support"),
        ("hello", "standard", "default"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_headers_tell_the_decision_and_the_records_agree(
    server: Any, text: str, mode: str, rule: str, stream: bool
) -> None:
    response = server.post(ask(text, stream=stream), x_request_id="abc-123")

    assert set(response.headers) >= FIELDS
    assert response.headers["x-request-id"] == "abc-123"
    assert mode == response.headers["x-draftgate-mode"]
    assert rule == response.headers["x-draftgate-rule"]
    assert response.headers["x-draftgate-verifier"] == "coupled"
    entry = server.entry(response.headers["x-draftgate-decision-id"])
    assert mode == entry.decision.decision.mode == entry.outcome.execution.mode
    assert entry.decision.request_id == "abc-123"
    assert entry.decision.decision.policy_hash.startswith(response.headers["x-draftgate-policy"])
    assert stream == entry.decision.request.stream
    assert entry.outcome.attestation == "ok"


def test_the_header_says_that_a_verifier_is_lossy(start: Any) -> None:
    policy = """
version: 1
name: relaxed
default: {mode: speculative, verifier: typical, allow_lossy: true, max_distortion: 0.1}
"""
    server = start(policy=policy)
    headers = server.post(ask()).headers

    assert headers["x-draftgate-verifier"] == "typical; lossy"
    entry = server.entry(headers["x-draftgate-decision-id"])
    assert entry.decision.decision.max_distortion == 0.1


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", "a\tb", "<script>"])
def test_an_odd_request_id_is_replaced(server: Any, given: str) -> None:
    response = server.post(ask(), x_request_id=given)

    assert response.headers["x-request-id"].startswith("req_")


def test_a_caller_may_ask_for_the_standard_mode(server: Any) -> None:
    response = server.post(ask("write a function"), x_draftgate_mode="Standard")

    assert response.headers["x-draftgate-mode"] == "standard"


def test_a_mode_that_does_not_exist_is_refused(server: Any) -> None:
    response = server.post(ask(), x_draftgate_mode="fast")

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-draftgate-mode"
    assert "standard, speculative, hybrid" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_denied_request_is_a_403_with_its_decision(server: Any, stream: bool) -> None:
    response = server.post(ask("forbidden", stream=stream))

    assert response.status_code == 403
    assert response.json() == {
        "error": {
            "message": "This is not answered here.",
            "type": "permission_error",
            "param": None,
            "code": "policy_denied",
        }
    }
    assert response.headers["x-draftgate-rule"] == "forbidden"
    entry = server.entry(response.headers["x-draftgate-decision-id"])
    assert entry.outcome.execution.mode is None


def test_several_choices_come_in_order_and_their_usage_is_summed(start: Callable[..., Any]) -> None:
    live = start({"replies": ["zero", "one two", "three four five"]})

    body = live.post(ask(n=3, seed=0)).json()

    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == [
        "zero",
        "one two",
        "three four five",
    ]
    assert body["usage"]["completion_tokens"] == 6
    assert body["usage"]["prompt_tokens"] == 1


def test_max_tokens_and_max_completion_tokens_mean_the_same(server: Any) -> None:
    for fields in (
        {"max_tokens": 2},
        {"max_completion_tokens": 2},
        {"max_tokens": 2, "max_completion_tokens": 2},
    ):
        choice = server.post(ask(**fields)).json()["choices"][0]
        assert choice["message"]["content"] == "The answer "
        assert choice["finish_reason"] == "length"

    refused = server.post(ask(max_tokens=2, max_completion_tokens=3))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_completion_tokens"


@pytest.mark.parametrize("stop", [" short", ["nothing", " short"]])
def test_stop_strings_end_the_answer(server: Any, stop: Any) -> None:
    choice = server.post(ask(stop=stop)).json()["choices"][0]

    assert choice["message"]["content"] == "The answer is"
    assert choice["finish_reason"] == "stop"


def test_logprobs_have_all_their_keys(server: Any) -> None:
    content = server.post(ask(logprobs=True, top_logprobs=1)).json()["choices"][0]["logprobs"][
        "content"
    ]

    assert len(content) == 4
    assert {"token", "logprob", "bytes", "top_logprobs"} == set(content[0])
    assert {"token", "logprob", "bytes"} == set(content[0]["top_logprobs"][0])
    assert list(b"The ") == content[0]["bytes"]
    bare = server.post(ask(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert bare[0]["top_logprobs"] == []


def test_every_knob_reaches_the_record(server: Any) -> None:
    knobs = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "max_tokens": 9,
        "stop": ["x", "y"],
        "seed": -(2**63),
        "frequency_penalty": -2,
        "presence_penalty": 1.5,
        "repetition_penalty": 1.1,
    }

    response = server.post(ask(**knobs, logit_bias={"12": -100, "7": 1.5}))
    sampling = server.entry(response.headers["x-draftgate-decision-id"]).decision.sampling

    for name, value in knobs.items():
        expected = tuple(value) if isinstance(value, list) else value
        assert expected == getattr(sampling, name), name
    assert dict(sampling.logit_bias) == {12: -100, 7: 1.5}


def test_null_counts_as_absent(server: Any) -> None:
    names = (
        "temperature top_p n stream stop max_tokens seed logit_bias logprobs top_logprobs tools "
        "tool_choice response_format frequency_penalty presence_penalty stream_options functions"
    )

    assert server.post(ask(**dict.fromkeys(names.split()))).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"something_new": {"deep": [1, 2]}},
        {"response_format": {"type": "text"}, "tools": [], "tool_choice": "none"},
        {"modalities": ["text"], "reasoning_effort": "none", "top_k": -1},
    ],
)
def test_fields_that_change_nothing_pass(server: Any, fields: dict[str, Any]) -> None:
    assert server.post(ask(**fields)).status_code == 200


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    "no parts": [{"role": "user", "content": []}],
    "empty text": [{"role": "user", "content": ""}],
    "developer": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "a"}],
    "only a system message": [{"role": "system", "content": "be brief"}],
    "null content": [{"role": "assistant", "content": None, "tool_calls": None}],
    "no content": [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ],
    "refusal": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
    "unknown key": [{"role": "user", "content": "a", "name": "ann", "x": 1}],
    "other languages": [{"role": "user", "content": "무엇입니까 🙂 שלום \x00\u2028"}],
}


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_every_legal_form_of_a_message_is_taken(
    server: Any, messages: list[dict[str, Any]]
) -> None:
    response = server.post({"model": "scripted", "messages": messages})

    assert response.status_code == 200, response.text


def test_the_text_of_earlier_calls_is_judged_too(server: Any) -> None:
    call = {"function": {"name": "lookup", "arguments": '{"what": "dose of a function"}'}}
    messages = [
        {"role": "user", "content": "write a function"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]

    response = server.post({"model": "scripted", "messages": messages})

    assert response.headers["x-draftgate-mode"] == "standard"


def test_the_text_of_every_part_is_judged(server: Any) -> None:
    parts = [{"type": "text", "text": "write a function"}, {"type": "text", "text": "the dose"}]

    response = server.post({"model": "scripted", "messages": [{"role": "user", "content": parts}]})

    assert response.headers["x-draftgate-mode"] == "standard"


def test_credentials_stay_out_of_the_log(server: Any) -> None:
    response = server.post(ask(), authorization="Bearer sk-very-secret", cookie="session=secret")
    server.entry(response.headers["x-draftgate-decision-id"])

    path = server.config.audit.url.partition(":///")[2]
    with open(path, "rb") as database, open(f"{path}-wal", "rb") as journal:
        assert b"secret" not in database.read() + journal.read()


def test_a_rule_with_an_odd_policy_still_gives_legal_headers(start: Callable[..., Any]) -> None:
    policy = 'version: 1\nname: "Grün\\r\\nx-evil: 1 \\u2028"\n'

    response = start(policy=policy).post(ask())

    assert response.status_code == 200
    assert "x-evil" not in response.headers
