"""Answers in which the model may call functions, but need not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from tests.api.test_streaming import raw
from tests.sse import checked as events

ARGUMENTS = '{"city": "Kraków"}'
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
REPLIES = {
    "both": f"<tool_call>{CALL}</tool_call> <tool_call>{CALL}</tool_call>",
    "weather": f"Let me see. <tool_call> {CALL} </tool_call>",
    "": "No need to look.",
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def ask(text: str, **fields: Any) -> Any:
    message = {"role": "user", "content": text}
    return {"model": "scripted", "messages": [message], "tools": TOOLS, **fields}


@pytest.fixture(scope="module")
def caller(make_config: Callable[..., Any], launch: Any) -> Iterator[Any]:
    with launch(make_config({"replies": REPLIES, "calls": "tagged"})) as live:
        yield live


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}])
def test_a_call_beside_text(caller: Any, choice: dict[str, Any]) -> None:
    answer = caller.post(ask("weather?", **choice)).json()["choices"][0]

    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] == "Let me see."
    (call,) = answer["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "weather", "arguments": ARGUMENTS}


def test_an_answer_without_a_call_is_text(caller: Any) -> None:
    answer = caller.post(ask("hello")).json()["choices"][0]

    assert answer["finish_reason"] == "stop"
    assert answer["message"] == {
        "role": "assistant",
        "content": "No need to look.",
        "refusal": None,
    }


def test_what_looks_like_a_call_is_text_where_none_is_wanted(caller: Any) -> None:
    answer = caller.post(ask("weather?", tool_choice="none")).json()["choices"][0]

    assert answer["message"]["content"] == REPLIES["weather"]
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize(("parallel", "count"), [(None, 2), (True, 2), (False, 1)])
def test_several_calls_have_ids_of_their_own(
    caller: Any, parallel: bool | None, count: int
) -> None:
    answer = caller.post(ask("both", parallel_tool_calls=parallel)).json()["choices"][0]

    calls = answer["message"]["tool_calls"]
    assert answer["message"]["content"] is None
    assert len({call["id"] for call in calls}) == len(calls) == count


def test_the_stream_has_the_id_and_name_first_and_then_the_arguments(caller: Any) -> None:
    _, data = raw(caller, ask("both", stream=True))

    deltas = [
        call
        for event in events(data)
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    assert [call["index"] for call in deltas] == sorted(call["index"] for call in deltas)
    for index in (0, 1):
        mine = [call for call in deltas if call["index"] == index]
        assert mine[0]["id"].startswith("call_")
        assert mine[0]["type"] == "function"
        assert mine[0]["function"] == {"name": "weather", "arguments": ""}
        assert all(call.keys() == {"index", "function"} for call in mine[1:])
        assert "".join(call["function"]["arguments"] for call in mine) == ARGUMENTS


def test_the_official_client_puts_the_stream_together(caller: Any) -> None:
    with (
        openai.OpenAI(base_url=f"{caller.url}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(**ask("both")) as stream,
    ):
        choice = stream.get_final_completion().choices[0]

    assert choice.finish_reason == "tool_calls"
    assert [
        (call.function.name, json.loads(call.function.arguments))
        for call in choice.message.tool_calls or ()
    ] == [("weather", {"city": "Kraków"})] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_cannot_go_with_a_call(caller: Any, fields: dict[str, Any], param: str) -> None:
    error = caller.post(ask("weather?", **fields)).json()["error"]

    assert (error["param"], error["code"]) == (param, "unsupported_parameter")


def test_a_model_that_knows_no_calls_says_so(server: Any) -> None:
    response = server.post(ask("weather?"))

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice"
    assert response.json()["error"]["code"] == "unsupported_parameter"
