"""The Responses API: its events, what is kept between requests, and the official client on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.api.responses.answers import ResponseEvent, ResponseObject
from gateway.config import AuthConfig, GatewayConfig, KeyConfig, ServerConfig
from tests.sse import named

PATH = "/v1/responses"
CALL = 'I look. <tool_call>{"name": "weather", "arguments": {"city": "Kraków"}}</tool_call>'
TOOLS: Any = [
    {
        "type": "function",
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
]
REPLIES = {
    "weather": CALL,
    "sunny": "It is sunny.",
    "silence": "",
    "": "The answer is short.",
}
KEYS = {"ann": "ann's key", "bob": "bob's key"}


def ask(text: str = "hello", /, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": text, **fields}


@pytest.fixture(scope="module")
def live(launch: Any, make_config: Callable[..., GatewayConfig]) -> Iterator[Any]:
    with launch(make_config({"replies": REPLIES, "calls": "tagged"})) as made:
        yield made


@pytest.fixture(scope="module")
def client(live: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def streamed(live: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = live.post({**body, "stream": True}, PATH)
    assert answer.status_code == 200, answer.text
    return named(answer.content)


def without_times(response: dict[str, Any]) -> dict[str, Any]:
    """What two answers to one request have in common."""
    text = json.dumps(response).replace(response["id"].removeprefix("resp_"), "ID")
    return {**json.loads(text), "created_at": 0, "completed_at": 0}


def test_a_text_event_by_event(live: Any) -> None:
    events = streamed(live, ask())

    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 4,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [e["delta"] for e in events if "delta" in e] == ["The ", "answer ", "is ", "short."]
    assert events[0]["response"]["output"] == []
    assert events[-1]["response"]["usage"] == {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }


@pytest.mark.parametrize(
    "body",
    [
        ask(),
        ask("silence"),
        ask(max_output_tokens=2),
        ask(include=["message.output_text.logprobs"], top_logprobs=1),
        ask("weather?", tools=TOOLS),
        ask("weather?", tools=TOOLS, max_output_tokens=5),
        ask(instructions="Be brief.", metadata={"a": "b"}, temperature=0.5, store=False),
    ],
    ids=["text", "silence", "length", "logprobs", "call", "call cut short", "echoed"],
)
def test_both_forms_agree_and_are_what_the_official_client_and_our_description_say(
    live: Any, body: dict[str, Any]
) -> None:
    events = streamed(live, body)
    whole = live.post(body, PATH).json()

    assert without_times(whole) == without_times(events[-1]["response"])
    Response.model_validate(whole)
    msgspec.convert(whole, ResponseObject)
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event)
        msgspec.convert(event, ResponseEvent)


def test_an_answer_cut_short_says_why(live: Any) -> None:
    whole = live.post(ask(max_output_tokens=2), PATH).json()

    assert (whole["status"], whole["completed_at"]) == ("incomplete", None)
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["output"][0]["status"] == "incomplete"


def test_a_conversation_goes_on_from_a_response(live: Any, client: openai.OpenAI) -> None:
    first = client.responses.create(
        model="scripted", input="weather?", tools=TOOLS, instructions="Be brief."
    )
    text, call = first.output
    assert (first.output_text, text.type, call.type) == ("I look.", "message", "function_call")
    assert json.loads(call.arguments) == {"city": "Kraków"}
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}

    second = client.responses.create(
        model="scripted", previous_response_id=first.id, input=[output], tools=TOOLS
    )

    # The words of the turn's text, of the call and of what it returned; no instructions.
    assert second.output_text == "It is sunny."
    assert second.usage is not None
    replayed: Any = [
        {"role": "user", "content": "weather?"},
        *[item.to_dict() for item in first.output],
        output,
    ]
    again = client.responses.create(model="scripted", input=replayed, tools=TOOLS)
    assert again.usage is not None
    assert again.usage.input_tokens == second.usage.input_tokens
    fetched = client.responses.retrieve(first.id)
    assert fetched.output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    assert client.responses.retrieve(second.id).previous_response_id == first.id


def test_the_clients_own_helpers(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="scripted", input="weather?", tools=TOOLS)
    with client.responses.stream(model="scripted", input="hello") as stream:
        final = stream.get_final_response()

    assert [item.type for item in parsed.output] == ["message", "function_call"]
    assert final.output_text == "The answer is short."


def test_what_is_not_to_be_stored_is_not_there(live: Any) -> None:
    answer = live.post(ask(store=False), PATH).json()

    assert answer["store"] is False
    assert live.get(f"{PATH}/{answer['id']}").status_code == 404


def test_a_response_is_its_callers_alone(
    launch: Any, make_config: Callable[..., GatewayConfig]
) -> None:
    from hashlib import sha256

    keys = tuple(KeyConfig(who, sha256(key.encode()).hexdigest()) for who, key in KEYS.items())
    server = ServerConfig(kept_responses=2)
    with launch(make_config(auth=AuthConfig(keys), server=server)) as live:
        ann, bob = ({"authorization": f"Bearer {key}"} for key in KEYS.values())
        mine = live.post(ask("planted"), PATH, **ann).json()["id"]

        theirs = live.get(f"{PATH}/{mine}", **bob)
        onward = live.post(ask(previous_response_id=mine), PATH, **bob)
        refused = [theirs, onward, live.get(f"{PATH}/{mine}")]
        assert [answer.status_code for answer in refused] == [404, 404, 401]
        assert onward.json()["error"]["code"] == "previous_response_not_found"
        assert "planted" not in theirs.text + onward.text
        assert live.get(f"{PATH}/{mine}", **ann).status_code == 200
        for _ in range(3):
            live.post(ask(), PATH, **bob)
        assert live.get(f"{PATH}/{mine}", **ann).status_code == 200
        for _ in range(2):
            live.post(ask(), PATH, **ann)
        assert live.get(f"{PATH}/{mine}", **ann).status_code == 404


def test_a_failure_midway_is_a_failed_response(start: Callable[..., Any]) -> None:
    live = start({"fail_after": 2})

    events = streamed(live, ask())

    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert "script says" in events[-1]["response"]["error"]["message"]
    assert live.get(f"{PATH}/{events[-1]['response']['id']}").status_code == 404
    assert live.post(ask(), PATH).status_code == 500


def test_it_is_decided_and_recorded_like_any_other_request(live: Any) -> None:
    answer = live.post(ask("What dose?", instructions="write a function"), PATH)
    denied = live.post(ask(instructions="forbidden"), PATH)

    assert answer.headers["x-draftgate-mode"] == "standard"
    assert denied.status_code == 403
    entry = live.entry(answer.headers["x-draftgate-decision-id"])
    assert answer.json()["id"].removeprefix("resp_") in entry.decision.decision_id
    assert entry.decision.request.endpoint == "responses"


def test_a_response_and_a_message_are_explained_as_they_would_be_decided(live: Any) -> None:
    message = {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    asked = {"request": {"model": "scripted", **message, "system": "What dose?"}}
    explain = "/v1/decisions/explain"
    response = live.post({"request": ask(instructions="What dose?")}, explain)
    named = live.post({**asked, "endpoint": "messages"}, explain)
    kept = live.post({"request": ask(previous_response_id="resp_1")}, explain)

    assert response.json()["decision"]["mode"] == named.json()["decision"]["mode"] == "standard"
    assert live.post(asked, explain).status_code == 400
    assert (kept.status_code, kept.json()["error"]["param"]) == (400, "previous_response_id")
    sent = live.post(asked["request"], "/v1/messages")
    assert sent.headers["x-draftgate-mode"] == "standard"
    entry = live.entry(sent.headers["x-draftgate-decision-id"])
    assert entry.decision.request.endpoint == "messages"
