"""What requests say about the form of their answers, and what is refused."""

import json

import pytest

from gateway.api.requests import chat_request, completion_request
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.types import Grammar

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA},
}
NOW = {"type": "function", "function": {"name": "now"}}


def ask(**fields):
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], **fields}
    return chat_request(body).request


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "structured_outputs": None, "guided_json": None}, None),
        ({"structured_outputs": {}}, None),
        (
            {"response_format": {"type": "json_object"}},
            Grammar("json_object", '{"type":"object"}', "response_format"),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            Grammar("json_schema", TEXT, "response_format"),
        ),
        (
            {"structured_outputs": {"json": SCHEMA}},
            Grammar("json_schema", TEXT, "structured_outputs"),
        ),
        (
            {"structured_outputs": {"json": TEXT}},
            Grammar("json_schema", TEXT, "structured_outputs"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            Grammar("json_object", '{"type":"object"}', "structured_outputs"),
        ),
        ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+", "structured_outputs")),
        (
            {"structured_outputs": {"choice": ["a", "é"]}},
            Grammar("choice", '["a","é"]', "structured_outputs"),
        ),
        (
            {"structured_outputs": {"grammar": "root ::="}},
            Grammar("grammar", "root ::=", "structured_outputs"),
        ),
        ({"guided_json": SCHEMA}, Grammar("json_schema", TEXT, "guided_json")),
        ({"guided_regex": "a"}, Grammar("regex", "a", "guided_regex")),
        ({"guided_choice": ["a"]}, Grammar("choice", '["a"]', "guided_choice")),
        ({"guided_grammar": "g"}, Grammar("grammar", "g", "guided_grammar")),
    ],
)
def test_every_way_to_ask_gives_one_grammar(fields, grammar):
    request = ask(**fields)

    assert request.grammar == grammar
    assert request.response_format == (grammar.kind if grammar else "text")
    assert completion_request({"model": "m", "prompt": "Hi.", **fields}).request.grammar == grammar


TOOLS = {"tools": [WEATHER, NOW]}
NAMED = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("choice", "called"), [("none", ()), ("required", ("weather", "now")), (NAMED, ("now",))]
)
def test_tools_are_kept_with_those_of_which_one_is_called(choice, called):
    request = ask(**TOOLS, tool_choice=choice, parallel_tool_calls=False)

    assert request.has_tools
    assert request.called == called
    assert [tool.name for tool in request.tools] == ["weather", "now"]
    assert request.tools[0].parameters == TEXT


def test_what_a_model_reads_of_tools_is_judged():
    assert ask(**TOOLS, tool_choice="none").texts() == (
        f"weather\nTells it.\n{TEXT}",
        'now\n{"type":"object","properties":{}}',
        "Hi.",
    )


@pytest.mark.parametrize(
    ("fields", "param", "error"),
    [
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
            InvalidRequest,
        ),
        ({"response_format": {"type": "structural_tag"}}, "response_format", UnsupportedParameter),
        ({"response_format": "json"}, "response_format", InvalidRequest),
        (
            {"response_format": {"type": "json_object"}, "guided_regex": "a"},
            "guided_regex",
            InvalidRequest,
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs",
            InvalidRequest,
        ),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs", InvalidRequest),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex", InvalidRequest),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend", UnsupportedParameter),
        ({"guided_regex": "a", "min_tokens": 3}, "min_tokens", InvalidRequest),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", InvalidRequest),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", InvalidRequest),
        ({"min_tokens": -1}, "min_tokens", InvalidRequest),
        ({**TOOLS, "tool_choice": "some"}, "tool_choice", InvalidRequest),
        (
            {**TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            InvalidRequest,
        ),
        ({**TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", UnsupportedParameter),
        (
            {**TOOLS, "tool_choice": "required", "parallel_tool_calls": True},
            "parallel_tool_calls",
            UnsupportedParameter,
        ),
        ({**TOOLS, "tool_choice": "required", "guided_regex": "a"}, "guided_regex", InvalidRequest),
        ({**TOOLS, "tool_choice": "required", "min_tokens": 2}, "min_tokens", InvalidRequest),
        ({"tool_choice": "required"}, "tool_choice", InvalidRequest),
        ({"tools": [WEATHER, WEATHER], "tool_choice": "none"}, "tools", InvalidRequest),
        (
            {"tools": [{"type": "retrieval"}], "tool_choice": "none"},
            "tools[0].type",
            UnsupportedParameter,
        ),
        (
            {"tools": [{"type": "function"}], "tool_choice": "none"},
            "tools[0].function",
            InvalidRequest,
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            InvalidRequest,
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
            InvalidRequest,
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(fields, param, error):
    with pytest.raises(error) as caught:
        ask(**fields)

    assert type(caught.value) is error
    assert caught.value.param == param
    assert caught.value.status == 400


def test_a_text_completion_has_no_tools():
    with pytest.raises(UnsupportedParameter):
        completion_request({"model": "m", "prompt": "Hi.", **TOOLS})
