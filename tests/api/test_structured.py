"""Constrained answers through a real server and the official client, on a model that knows nothing."""

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import openai
import pydantic
import pytest

from gateway.config import AuditConfig, BackendConfig, GatewayConfig
from tests.live import LiveServer
from tests.sse import named
from tests.tiny import TEMPLATE, build_tiny_model

POLICY = """\
version: 1
name: structured
rules:
  - {id: tools, when: {has_tools: true}, decide: {mode: hybrid, standard_first: 2}}
  - {id: schema, when: {response_format: {is: json_schema}}, decide: {mode: speculative}}
"""
MODEL = "tiny-llama"
HELLO = [{"role": "user", "content": "Hi."}]


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Dot(pydantic.BaseModel):
    colour: Colour
    size: int = pydantic.Field(ge=1, le=3)


class Dots(pydantic.BaseModel):
    dots: list[Dot] = pydantic.Field(min_length=1, max_length=2)
    last: bool


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now", "strict": True}}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("structured")
    (folder / "policy.yaml").write_text(POLICY)
    model = build_tiny_model(folder / MODEL)
    # It takes tools and makes short work of them: the model's context is 256 letters.
    (model / "chat_template.jinja").write_text("{{ tools | length if tools else 0 }}" + TEMPLATE)
    options = {"model": str(model), "device": "cpu", "dtype": "float32", "cost_model": "off"}
    config = GatewayConfig(
        backends={"local": BackendConfig("local", options)},
        policy=folder / "policy.yaml",
        classifiers=(),
        audit=AuditConfig(f"sqlite:///{folder / 'decisions.db'}"),
    )
    with LiveServer(config, seconds=60) as server:
        yield server


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HELLO, "seed": 3, "max_tokens": 120, **fields}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_client_parses_what_a_model_class_describes(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=HELLO, response_format=Dots, seed=seed, max_tokens=200
    )

    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.parsed == Dots.model_validate_json(choice.message.content)


@pytest.mark.parametrize(
    ("form", "answers"),
    [
        ({"choice": ["yes", "no", "vielleicht ü"]}, {"yes", "no", "vielleicht ü"}),
        ({"regex": "(ab){2}c?"}, {"abab", "ababc"}),
        ({"grammar": 'root ::= "x" y\ny ::= "1" | "2"'}, {"x1", "x2"}),
        ({"json": {"enum": [1, "a"]}}, {"1", '"a"'}),
    ],
)
def test_every_form_holds_in_both_endpoints_and_in_streams(
    live: LiveServer, client: openai.OpenAI, form: dict[str, Any], answers: set[str]
) -> None:
    extra = {"structured_outputs": form}
    chat = client.chat.completions.create(**ask(n=3, stop=["zz"]), extra_body=extra)
    text = client.completions.create(
        model=MODEL, prompt="Hi.", seed=3, max_tokens=120, extra_body=extra
    )
    stream = client.chat.completions.create(**ask(), stream=True, extra_body=extra)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert {choice.message.content for choice in chat.choices} <= answers
    assert {choice.finish_reason for choice in chat.choices} == {"stop"}
    assert text.choices[0].text in answers
    assert streamed == chat.choices[0].message.content


def test_all_modes_give_the_same_constrained_answer(client: openai.OpenAI) -> None:
    schema = {"json_schema": {"name": "dots", "schema": Dots.model_json_schema()}}
    form = {"type": "json_schema", **schema}
    answers = [
        client.chat.completions.with_raw_response.create(
            **ask(response_format=form, max_tokens=200), extra_headers=headers
        )
        for headers in ({}, {"X-Draftgate-Mode": "standard"})
    ]

    modes = [answer.headers["x-draftgate-mode"] for answer in answers]
    texts = [answer.parse().choices[0].message.content for answer in answers]
    assert modes == ["speculative", "standard"]
    assert texts[0] == texts[1]
    Dots.model_validate_json(texts[0])


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_is_made_and_its_arguments_fit(client: openai.OpenAI, choice: Any) -> None:
    fields = ask(tools=[WEATHER, NOW], tool_choice=choice)
    answer = client.chat.completions.with_raw_response.create(**fields)
    (made,) = answer.parse().choices
    (call,) = made.message.tool_calls

    assert answer.headers["x-draftgate-rule"] == "tools"
    assert made.finish_reason == "tool_calls"
    assert made.message.content is None
    arguments = json.loads(call.function.arguments)
    if choice != "required" or call.function.name == "weather":
        assert call.function.name == "weather"
        assert arguments["city"] in ("Oslo", "Rome")
    else:
        assert arguments == {}


def test_a_streamed_call_is_the_same_one(client: openai.OpenAI, live: LiveServer) -> None:
    fields = ask(tools=[WEATHER, NOW], tool_choice="required")
    (made,) = client.chat.completions.create(**fields).choices
    with client.chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion().choices[0]

    assert final.finish_reason == made.finish_reason == "tool_calls"
    (ours,), (theirs,) = made.message.tool_calls, final.message.tool_calls
    assert theirs.function.name == ours.function.name
    assert theirs.function.arguments == ours.function.arguments
    assert [str(reason) for reason in live.last().outcome.finish_reasons] == ["tool_calls"]
    assert live.last().decision.request.has_tools


def test_the_responses_api_holds_to_the_same_forms(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "input": "Hi.", "extra_body": {"seed": 3}}
    tool = {"type": "function", **WEATHER["function"]}

    parsed = client.responses.parse(**fields, text_format=Dots)
    with client.responses.stream(**fields, text_format=Dots) as stream:
        streamed = stream.get_final_response()
    (call,) = client.responses.create(**fields, tools=[tool], tool_choice="required").output
    events = list(
        client.responses.create(**fields, tools=[tool], tool_choice="required", stream=True)
    )

    assert isinstance(parsed.output_parsed, Dots)
    assert streamed.output_parsed == parsed.output_parsed
    assert (call.type, call.name) == ("function_call", "weather")
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    assert events[-1].type == "response.completed"


def test_the_messages_api_holds_to_the_same_forms(live: LiveServer) -> None:
    body = {"model": MODEL, "messages": HELLO, "seed": 3, "max_tokens": 200}
    function = WEATHER["function"]
    tool = {"name": "weather", "input_schema": function["parameters"]}
    schema = {"type": "json_schema", "schema": Dots.model_json_schema()}

    formed = live.post({**body, "output_config": {"format": schema}}, "/v1/messages").json()
    demanded = {**body, "tools": [tool], "tool_choice": {"type": "any"}}
    called = live.post(demanded, "/v1/messages").json()
    events = named(live.post({**demanded, "stream": True}, "/v1/messages").content)

    Dots.model_validate_json(formed["content"][0]["text"])
    (use,) = called["content"]
    assert called["stop_reason"] == "tool_use"
    assert use["input"]["city"] in ("Oslo", "Rome")
    written = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert json.loads("".join(written)) == use["input"]


def test_a_call_cut_by_its_limit_says_so(client: openai.OpenAI) -> None:
    (made,) = client.chat.completions.create(
        **ask(tools=[WEATHER], tool_choice="required", max_tokens=40)
    ).choices

    assert made.finish_reason == "length"
    assert made.message.tool_calls[0].function.name == "weather"


def test_a_conversation_goes_on_after_a_call(client: openai.OpenAI) -> None:
    fields = ask(tools=[WEATHER], tool_choice="required")
    message = client.chat.completions.create(**fields).choices[0].message
    call = message.tool_calls[0]
    turns = [
        *HELLO,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Rain."},
    ]

    answer = client.chat.completions.create(
        **ask(messages=turns, tools=[WEATHER], tool_choice="none", max_tokens=4)
    )

    assert answer.choices[0].message.tool_calls is None


def test_no_answer_ends_before_min_tokens(live: LiveServer) -> None:
    # Ids 0 and 1 are the special ones; a bias makes the end all but certain.
    end = {"logit_bias": {"1": 100}}
    short = live.post(ask(**end)).json()
    long = live.post(ask(**end, min_tokens=5)).json()

    assert short["usage"]["completion_tokens"] == 1
    assert long["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {
                "schema": {"type": "array", "uniqueItems": True}}}},
            "response_format", "'uniqueItems'",
        ),
        ({"structured_outputs": {"regex": r"a\b"}}, "structured_outputs", "position 1"),
        ({"guided_choice": []}, "guided_choice", "not empty"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs", "cannot be used"),
        (
            {"tools": [NOW, {"type": "function", "function": {"name": "f", "parameters": {
                "type": "object", "minProperties": 1}}}], "tool_choice": "required"},
            "tools[1].function.parameters", "'minProperties'",
        ),
        ({"tools": [NOW]}, "tool_choice", "required"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_name(
    live: LiveServer, fields: dict[str, Any], param: str, says: str
) -> None:
    response = live.post(ask(**fields))

    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]
