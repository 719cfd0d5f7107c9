"""Anthropic's Messages API: its events, its errors, and how turns and tools are translated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from gateway.api.messages.answers import MessageEvent, MessageObject
from gateway.api.messages.requests import message_request
from gateway.config import AuthConfig, GatewayConfig, KeyConfig, ServerConfig
from gateway.types import Message, ToolCall
from tests.api.test_responses import CALL
from tests.sse import named

PATH = "/v1/messages"
TOOLS = [
    {
        "name": "weather",
        "description": "The weather",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
REPLIES = {"weather": CALL, "silence": "", "": "The answer is short."}


def ask(text: str = "hello", /, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "scripted", "max_tokens": 100, "messages": messages, **fields}


@pytest.fixture(scope="module")
def live(launch: Any, make_config: Callable[..., GatewayConfig]) -> Iterator[Any]:
    with launch(make_config({"replies": REPLIES, "calls": "tagged"})) as made:
        yield made


def streamed(live: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = live.post({**body, "stream": True}, PATH)
    assert answer.status_code == 200, answer.text
    return named(answer.content)


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of its events."""
    message: dict[str, Any] = events[0]["message"]
    for event in events[1:]:
        if event["type"] == "content_block_start":
            message["content"].append(event["content_block"])
            text = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                message["content"][-1]["text"] += delta["text"]
            else:
                text += delta["partial_json"]
                message["content"][-1]["input"] = text
        elif event["type"] == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
    for block in message["content"]:
        if isinstance(block.get("input"), str):
            block["input"] = msgspec.json.decode(block["input"])
    return message


def test_a_text_event_by_event(live: Any) -> None:
    events = streamed(live, ask())

    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {
            "input_tokens": 1,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 4,
        },
    }


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (ask(), "end_turn"),
        (ask("silence"), "end_turn"),
        (ask(max_tokens=2), "max_tokens"),
        (ask(stop_sequences=["short", "is"]), "stop_sequence"),
        (ask("weather?", tools=TOOLS), "tool_use"),
    ],
    ids=["text", "silence", "length", "stop", "call"],
)
def test_both_forms_agree_and_are_as_described(live: Any, body: Any, reason: str) -> None:
    events = streamed(live, body)
    whole = live.post(body, PATH).json()

    for event in events:
        msgspec.convert(event, MessageEvent)
    msgspec.convert(whole, MessageObject)
    assert whole["stop_reason"] == reason
    assert whole["stop_sequence"] == ("is" if reason == "stop_sequence" else None)

    def plain(message: dict[str, Any]) -> dict[str, Any]:
        blocks = [{**block, "id": None} for block in message["content"]]
        return {**message, "id": None, "content": blocks}

    assert plain(folded(events)) == plain(whole)


def test_a_call_is_a_block_of_its_own(live: Any) -> None:
    text, use = live.post(ask("weather?", tools=TOOLS), PATH).json()["content"]

    assert text == {"type": "text", "text": "I look."}
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "weather", {"city": "Kraków"})
    assert use["id"].startswith("toolu_")


def test_turns_and_tools_reach_the_model_as_its_own_words_for_them() -> None:
    asked = message_request(
        ask(
            system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            tools=TOOLS,
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
            metadata={"user_id": "x"},
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                        {"type": "text", "text": "And"},
                        {"type": "text", "text": "tomorrow?"},
                    ],
                },
            ],
        )
    ).request

    assert asked.messages == (
        Message("system", "Be brief."),
        Message("user", "Weather?"),
        Message("assistant", "I look.", tool_calls=(ToolCall("weather", '{"a":1}', "t1"),)),
        Message("tool", "sunny", tool_call_id="t1"),
        Message("user", "And\ntomorrow?"),
    )
    assert asked.may_call
    assert not asked.several_calls
    demanded = message_request(ask(tools=TOOLS, tool_choice={"type": "any"})).request
    assert demanded.called == ("weather",)
    schema = {"type": "object", "properties": {}}
    formed = message_request(
        ask(output_config={"format": {"type": "json_schema", "schema": schema}})
    )
    assert formed.request.response_format == "json_schema"


def test_counting_tokens_runs_nothing(live: Any) -> None:
    before = len(live.entries())
    body = {k: v for k, v in ask("one two three", system="four").items() if k != "max_tokens"}

    answer = live.post(body, f"{PATH}/count_tokens")

    assert answer.json() == {"input_tokens": 4}
    assert len(live.entries()) == before


def test_errors_have_their_shape_before_and_in_a_stream(
    live: Any, start: Callable[..., Any]
) -> None:
    denied = live.post(ask(system="forbidden"), PATH)
    broken = start({"fail_after": 2})

    midway = broken.post({**ask(), "stream": True}, PATH, x_request_id="mine")

    assert denied.status_code == 403
    assert denied.json()["type"] == "error"
    assert denied.json()["error"]["type"] == "permission_error"
    assert denied.json()["error"]["code"] == "policy_denied"
    last = named(midway.content)[-1]
    assert last["request_id"] == "mine"
    assert last["error"]["type"] == "api_error"
    assert "script says" in last["error"]["message"]


def test_a_key_alone_in_its_header_and_none_at_all(
    launch: Any, make_config: Callable[..., GatewayConfig]
) -> None:
    keys = (KeyConfig("ann", sha256(b"secret").hexdigest()),)
    server = ServerConfig(patience_seconds=0.05, heartbeat_seconds=0.05)
    slow = {"first_chunk_seconds": 0.3}
    with launch(make_config(slow, auth=AuthConfig(keys), server=server)) as live:
        without = live.post(ask(), PATH)
        waited = live.post({**ask(), "stream": True}, PATH, x_api_key="secret")

    assert without.status_code == 401
    assert without.json()["error"]["type"] == "authentication_error"
    assert waited.content.startswith(b'event: ping\ndata: {"type":"ping"}\n\n')
    assert named(waited.content)[-1]["type"] == "message_stop"


def test_leaving_cancels_the_answer(start: Callable[..., Any]) -> None:
    from tests.api.test_disconnect import abort, connect, idle, running

    live = start({"chunk_seconds": 0.02})
    client = connect(live, path=PATH, stream=True, max_tokens=300)
    running(live, 1)
    time.sleep(0.05)

    abort(client)

    assert idle(live)
    assert live.last().outcome.finish_reasons == ("cancelled",)
