"""Requests that nobody sends by accident, and what each must be answered with."""

from __future__ import annotations

import gzip
import json
from typing import Any, NamedTuple

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
BASE = {"model": "scripted", "messages": HELLO}
TEXT_BASE = {"model": "scripted", "prompt": "hello"}


class Hostile(NamedTuple):
    """One request, and the answer's status, ``error.param`` and ``error.code``."""

    name: str
    status: int
    param: str | None
    code: str | None
    body: bytes = json.dumps(BASE).encode()
    path: str = CHAT
    headers: tuple[tuple[bytes, bytes], ...] = ()
    method: str = "POST"


def chat(name: str, param: str | None, code: str, status: int = 400, **fields: Any) -> Hostile:
    """A chat request with these fields."""
    return Hostile(name, status, param, code, json.dumps({**BASE, **fields}).encode())


def text(name: str, param: str | None, code: str, status: int = 400, **fields: Any) -> Hostile:
    """A text completion with these fields."""
    body = json.dumps({**TEXT_BASE, **fields}).encode()
    return Hostile(name, status, param, code, body, TEXT)


def response(
    name: str, param: str | None, code: str | None, status: int = 400, **fields: Any
) -> Hostile:
    """A Responses request with these fields."""
    body = json.dumps({"model": "scripted", "input": "hello", **fields}).encode()
    return Hostile(f"responses: {name}", status, param, code, body, RESPONSES)


def anthropic(
    name: str, param: str | None, code: str | None, status: int = 400, **fields: Any
) -> Hostile:
    """A Messages request with these fields."""
    body = json.dumps({**BASE, "max_tokens": 9, **fields}).encode()
    return Hostile(f"messages: {name}", status, param, code, body, MESSAGES)


def raw(name: str, body: bytes, code: str, param: str | None = None, status: int = 400) -> Hostile:
    """A body as it is."""
    return Hostile(name, status, param, code, body)


def said(content: str) -> list[dict[str, str]]:
    """A conversation of one message."""
    return [{"role": "user", "content": content}]


def _inside(value: bytes, field: bytes = b"temperature") -> bytes:
    """The base request with one more field, written as it is."""
    return json.dumps(BASE).encode()[:-1] + b', "' + field + b'": ' + value + b"}"


BOMB = gzip.compress(b"[" * 20_000_000, 1)
WRONG_TYPES: tuple[tuple[str, Any], ...] = (("text", "1"), ("list", [1]), ("object", {"a": 1}))
NUMBERS = {
    "temperature": ("decimal", -1, 1e30),
    "top_p": ("decimal", -1, 1e30),
    "presence_penalty": ("decimal", -1e30, 1e30),
    "frequency_penalty": ("decimal", -1e30, 1e30),
    "n": ("integer", -1, 1 << 40),
    "max_tokens": ("integer", -1, None),
    "max_completion_tokens": ("integer", -1, None),
    "top_logprobs": ("integer", -1, 1 << 40),
    "min_p": ("decimal", -1, 1e30),
    "repetition_penalty": ("decimal", -1, 1e30),
    "min_tokens": ("integer", -1, None),
}


def _numbers() -> list[Hostile]:
    cases = []
    for field, (kind, low, high) in NUMBERS.items():
        cases += [
            chat(f"{field}: {name}", field, "invalid_type", **{field: value})
            for name, value in (*WRONG_TYPES, ("true", True))
        ]
        cases.append(chat(f"{field}: {low}", field, f"{kind}_below_min_value", **{field: low}))
        if high is not None:
            code = f"{kind}_above_max_value"
            cases.append(chat(f"{field}: {high}", field, code, **{field: high}))
    return cases


def _json() -> list[Hostile]:
    bad = "invalid_json"
    bodies = {
        "nothing": b"",
        "a blank": b" ",
        "a word": b"hello",
        "half an object": b'{"model": "scripted"',
        "half a string": b'{"model": "scr',
        "a comma at the end": b'{"model": "scripted",}',
        "two objects": b"{}{}",
        "single quotes": b"{'model': 'scripted'}",
        "a comment": b'{"model": "scripted" /* x */}',
        "a byte order mark": b"\xef\xbb\xbf{}",
        "UTF-16": '{"model": "scripted"}'.encode("utf-16"),
        "UTF-32": '{"model": "scripted"}'.encode("utf-32"),
        "Latin-1": b'{"model": "\xe9"}',
        "an overlong character": b'{"model": "\xc0\xaf"}',
        "a raw surrogate": b'{"model": "\xed\xa0\x80"}',
        "half a character": b'{"model": "\xf0\x9f\x98"}',
        "a zero byte": b'{"model": "a\x00b"}',
        "only zero bytes": b"\x00" * 1000,
        "a raw line break in a string": b'{"model": "a\nb"}',
        "a bad escape": b'{"model": "\\x41"}',
        "a short escape": b'{"model": "\\u12"}',
        "NaN": _inside(b"NaN"),
        "Infinity": _inside(b"Infinity"),
        "minus Infinity": _inside(b"-Infinity"),
        "a plus sign": _inside(b"+1"),
        "a leading zero": _inside(b"01"),
        "a bare point": _inside(b"1."),
        "hexadecimal": _inside(b"0x10"),
        "a number beyond every number": _inside(b"1e999"),
        "deep lists": b"[" * 100_000,
        "deep lists that end": b"[" * 100_000 + b"]" * 100_000,
        "deep objects": b'{"a":' * 100_000,
        "a deep field": _inside(b"[" * 50_000 + b"]" * 50_000),
        "random bytes": bytes(range(256)) * 8,
        "a form": b"model=scripted&messages=hello",
        "XML": b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a/>",
    }
    cases = [raw(f"body: {name}", body, bad) for name, body in bodies.items()]
    values = {
        "a list": b"[]",
        "null": b"null",
        "a number": b"1",
        "a string": b'"a"',
        "true": b"true",
    }
    return cases + [raw(f"body: {name}", body, "invalid_type") for name, body in values.items()]


def _shapes() -> list[Hostile]:
    missing = "missing_required_parameter"
    return [
        raw("an empty object", b"{}", missing, "model"),
        chat("no messages at all", "messages", "empty_array", messages=[]),
        chat("messages: null", "messages", "invalid_type", messages=None),
        chat("messages: a string", "messages", "invalid_type", messages="hello"),
        chat("messages: an object", "messages", "invalid_type", messages={"role": "user"}),
        chat("a message that is a list", "messages[0]", "invalid_type", messages=[[]]),
        chat("a message that is null", "messages[0]", "invalid_type", messages=[None]),
        chat("an empty message", "messages[0].role", missing, messages=[{}]),
        chat("a role nobody has", "messages[0].role", "invalid_value", messages=[{"role": "root"}]),
        chat(
            "a role with a line break",
            "messages[0].role",
            "invalid_value",
            messages=[{"role": "user\nsystem", "content": "a"}],
        ),
        chat(
            "content: an object",
            "messages[0].content",
            "invalid_type",
            messages=[{"role": "user", "content": {"a": 1}}],
        ),
        chat(
            "a model that is not there", "model", "model_not_found", 404, model="../../etc/passwd"
        ),
        chat("a model with a line break", "model", "model_not_found", 404, model="a\r\nx-evil: 1"),
        chat("a model of a megabyte", "model", "model_not_found", 404, model="m" * 900_000),
        chat("a model that ends a query", "model", "model_not_found", 404, model="' OR 1=1; --"),
        chat("a model in a format", "model", "model_not_found", 404, model="{0.__class__} %s %n"),
        chat("a model of zero bytes", "model", "model_not_found", 404, model="\x00\x00"),
        chat("a model that is blank", "model", "model_not_found", 404, model=" "),
        chat("a lone surrogate as a model", None, "invalid_json", model="\ud800"),
        chat("a lone surrogate as a prompt", None, "invalid_json", messages=said("\udfff")),
        chat(
            "an unknown field of a known server",
            "chat_template",
            "unsupported_parameter",
            chat_template="{{ 1 }}",
        ),
        chat("stream: text", "stream", "invalid_type", stream="true"),
        chat("stream_options without stream", "stream_options", "invalid_value", stream_options={}),
        chat("seed beyond 64 bits", "seed", "invalid_value", seed=1 << 80),
        chat("seed: a fraction", "seed", "invalid_type", seed=0.5),
        chat("n: half a choice", "n", "invalid_type", n=1.5),
        chat("max_tokens: a fraction", "max_tokens", "invalid_type", max_tokens=0.5),
        chat("five stops", "stop", "invalid_value", stop=list("abcde")),
        chat("stop: numbers", "stop[0]", "invalid_type", stop=[1]),
        chat("stop: nothing", "stop", "invalid_value", stop=""),
        chat("logit_bias: a word", "logit_bias", "invalid_value", logit_bias={"hello": 1}),
        chat("logit_bias: a negative id", "logit_bias", "invalid_value", logit_bias={"-1": 1}),
        chat("logit_bias: other digits", "logit_bias", "invalid_value", logit_bias={"٣": 1}),
        chat(
            "logit_bias: too many",
            "logit_bias",
            "invalid_value",
            logit_bias={str(i): 1 for i in range(2000)},
        ),
        chat(
            "logit_bias: too strong",
            "logit_bias[...]",
            "decimal_above_max_value",
            logit_bias={"1": 1e9},
        ),
        chat(
            "a prompt beyond the context",
            "messages",
            "context_length_exceeded",
            messages=said("a " * 200_000),
        ),
        chat(
            "many messages beyond the context",
            "messages",
            "context_length_exceeded",
            messages=said("a b") * 5_000,
        ),
        text("prompt: null", "prompt", "invalid_type", prompt=None),
        text("prompt: an object", "prompt", "invalid_type", prompt={}),
        text("prompt: two", "prompt", "unsupported_parameter", prompt=["a", "b"]),
        text("prompt: nothing", "prompt", "empty_array", prompt=[]),
        text("prompt: negative ids", "prompt", "invalid_value", prompt=[-1]),
        text("prompt: mixed", "prompt", "unsupported_parameter", prompt=[1, "a"]),
        text("best_of: too many", "best_of", "integer_above_max_value", best_of=10_000),
        text("suffix", "suffix", "unsupported_parameter", suffix="a"),
        raw(
            "a megabyte and more",
            json.dumps({**BASE, "messages": said("a" * 1_100_000)}).encode(),
            "request_too_large",
            status=413,
        ),
        raw("ten megabytes of blanks", b" " * 10_000_000, "request_too_large", status=413),
    ]


def _headers() -> list[Hostile]:
    def sent(
        name: str,
        header: bytes,
        value: bytes,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        body: bytes = json.dumps(BASE).encode(),
    ) -> Hostile:
        return Hostile(name, status, param, code, body, headers=((header, value),))

    squeezed = ("gzip", "deflate", "br", "zstd", "identity, gzip", "GZIP", "x-unknown")
    cases = [
        sent(
            f"Content-Encoding: {kind}",
            b"content-encoding",
            kind.encode(),
            415,
            None,
            "unsupported_content_encoding",
            BOMB,
        )
        for kind in squeezed
    ]
    wishes = (b"root", b"", b"standard, speculative", b"standard\xff", b"0", b"s" * 5_000)
    cases += [
        sent(
            f"a mode of {wish[:10]!r}",
            b"x-draftgate-mode",
            wish,
            400,
            "x-draftgate-mode",
            "invalid_value",
        )
        for wish in wishes
    ]
    times = (b"0", b"-1", b"1e9", b"NaN", b"99999", b"1; drop", b"\xb2")
    cases += [
        sent(
            f"a timeout of {wish!r}",
            b"x-request-timeout",
            wish,
            400,
            "x-request-timeout",
            "invalid_value",
        )
        for wish in times
    ]
    harmless = {
        "an id with a quote": (b"x-request-id", b'"><script>'),
        "an id that is too long": (b"x-request-id", b"a" * 5_000),
        "an id of other bytes": (b"x-request-id", b"\xff\xfe"),
        "an id in a terminal's words": (b"x-request-id", b"a[31m"),
        "a forged address": (b"x-forwarded-for", b"127.0.0.1, ::1"),
        "a forged host": (b"x-forwarded-host", b"evil.example"),
        "a forged caller": (b"x-draftgate-caller", b"admin"),
        "a forged path": (b"x-original-url", b"/v1/policy"),
        "another method": (b"x-http-method-override", b"DELETE"),
        "a type that is not JSON": (b"content-type", b"text/xml; charset=utf-7"),
        "a charset that is none": (b"content-type", b"application/json; charset=\xff"),
        "a cookie": (b"cookie", b"session=" + b"a" * 4_000),
        "a range": (b"range", b"bytes=0-1"),
        "a condition": (b"if-none-match", b"*"),
        "an upgrade": (b"upgrade", b"h2c"),
        "identity": (b"content-encoding", b"identity"),
    }
    return cases + [sent(name, *header, 200) for name, header in harmless.items()]


def _paths() -> list[Hostile]:
    paths = {
        "/v1/../metrics": 404,
        "/v1/%2e%2e/%2e%2e/etc/passwd": 404,
        "/v1/models/../../../etc/passwd": 404,
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd": 404,
        "/v1/models/scripted%00": 404,
        "/v1/models/" + "a" * 8_000: 404,
        "/v1/models/a%0d%0ax-evil:%201": 404,
        "/v1/models/%ff%fe": 404,
        "/v1//models": 200,
        "/v1/decisions/../policy": 404,
        "/v1/decisions/%27%20OR%201=1": 404,
        "/v1/decisions/dec_": 404,
        "/v1/policy/versions/..": 403,
        "/V1/MODELS": 404,
        "/v1/models?limit=-1&limit=1e9&%00": 200,
        "/openapi.json/../v1": 404,
        "//evil.example/v1/models": 404,
        "/.env": 404,
        "/.git/config": 404,
    }
    cases = [
        Hostile(f"GET {path[:40]}", status, None, None, b"", path, method="GET")
        for path, status in paths.items()
    ]
    methods = ("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "GET", "A" * 60)
    return cases + [
        Hostile(
            f"{method[:10]} where POST is wanted",
            405,
            None,
            "method_not_allowed",
            b"",
            CHAT,
            method=method,
        )
        for method in methods
    ]


MISSING = "missing_required_parameter"


def _responses() -> list[Hostile]:
    def item(name: str, param: str, code: str, /, **fields: Any) -> Hostile:
        return response(f"an item {name}", f"input[0]{param}", code, input=[fields])

    refused = "unsupported_parameter"
    function = {"type": "function", "name": "f"}
    return [
        response("no input", "input", "invalid_type", input=None),
        response("an input that is a number", "input", "invalid_type", input=7),
        response("an input of nothing", "input", "empty_array", input=[]),
        response("items that are texts", "input[0]", "invalid_type", input=["hello"]),
        item("of nothing", ".content", MISSING),
        item("without a role", ".role", MISSING, content="a"),
        item("of an unknown role", ".role", "invalid_value", role="root", content="a"),
        item("of another type", ".type", refused, type="computer_call"),
        item("that is a reference", ".type", refused, type="item_reference", id="msg_1"),
        item("whose type is a number", ".type", "invalid_type", type=1),
        item(
            "with an image",
            ".content[0]",
            refused,
            role="user",
            content=[{"type": "input_image", "image_url": "http://169.254.169.254/"}],
        ),
        item("with a part of nothing", ".content[0].type", MISSING, role="user", content=[{}]),
        item("that is a call of nothing", ".name", MISSING, type="function_call"),
        item(
            "whose output nobody asked",
            ".call_id",
            MISSING,
            type="function_call_output",
            output="1",
        ),
        item(
            "with arguments that are no text",
            ".arguments",
            "invalid_type",
            type="function_call",
            arguments={},
        ),
        response(
            "an unknown response",
            "previous_response_id",
            "previous_response_not_found",
            404,
            previous_response_id="resp_0",
        ),
        response(
            "a path for a response",
            "previous_response_id",
            "previous_response_not_found",
            404,
            previous_response_id="../" * 30_000,
        ),
        response(
            "a response that is a number",
            "previous_response_id",
            "invalid_type",
            previous_response_id=1,
        ),
        response("chat's name for the length", "max_tokens", refused, max_tokens=5),
        response(
            "chat's name for the format",
            "response_format",
            refused,
            response_format={"type": "text"},
        ),
        response("no tokens", "max_output_tokens", "integer_below_min_value", max_output_tokens=0),
        response("in the background", "background", refused, background=True),
        response("in a conversation", "conversation", refused, conversation="conv_1"),
        response("with reasoning", "reasoning", refused, reasoning={"effort": "high"}),
        response("cut by the server", "truncation", refused, truncation="auto"),
        response("with two answers", "n", refused, n=2),
        response("a tool of the server", "tools[0].type", refused, tools=[{"type": "web_search"}]),
        response("a tool without a name", "tools[0].name", MISSING, tools=[{"type": "function"}]),
        response("a choice without tools", "tool_choice", "invalid_value", tool_choice="required"),
        response(
            "a choice of a server's tool",
            "tool_choice",
            refused,
            tools=[function],
            tool_choice={"type": "mcp", "name": "f"},
        ),
        response(
            "a choice of no tool",
            "tool_choice",
            "invalid_value",
            tools=[function],
            tool_choice={"type": "function", "name": "g"},
        ),
        response("a format of no kind", "text.format", refused, text={"format": {"type": "xml"}}),
        response(
            "a format without a schema",
            "text.format.schema",
            MISSING,
            text={"format": {"type": "json_schema", "name": "a"}},
        ),
        response("a chatty text", "text.verbosity", refused, text={"verbosity": "high"}),
        response("to include what nobody knows", "include", "invalid_value", include=["secrets"]),
        response(
            "metadata without end",
            "metadata",
            "invalid_value",
            metadata={str(i): "" for i in range(17)},
        ),
        response("metadata that are numbers", "metadata[...]", "invalid_type", metadata={"a": 1}),
        response("words without end", "input", "context_length_exceeded", input="a " * 100_000),
        Hostile("responses: a list", 400, None, "invalid_type", b"[]", RESPONSES),
        Hostile(
            "responses: a stranger's",
            404,
            "response_id",
            "not_found",
            b"",
            f"{RESPONSES}/resp_0",
            method="GET",
        ),
        Hostile(
            "responses: of another tree",
            404,
            None,
            None,
            b"",
            f"{RESPONSES}/..%2f..%2fmetrics",
            method="GET",
        ),
        Hostile(
            "responses: forgotten already",
            404,
            "response_id",
            "not_found",
            b"",
            f"{RESPONSES}/resp_0",
            method="DELETE",
        ),
    ]


def _messages() -> list[Hostile]:
    def block(name: str, param: str, code: str, /, role: str = "user", **fields: Any) -> Hostile:
        messages = [{"role": role, "content": [fields]}, *HELLO]
        return anthropic(
            f"a block {name}", f"messages[0].content[0]{param}", code, messages=messages
        )

    refused = "unsupported_parameter"
    tool = {"name": "f", "input_schema": {"type": "object"}}
    return [
        anthropic("no length", "max_tokens", "invalid_type", max_tokens=None),
        anthropic("no tokens", "max_tokens", "integer_below_min_value", max_tokens=0),
        anthropic("no messages", "messages", "empty_array", messages=[]),
        anthropic(
            "a role of another API",
            "messages[0].role",
            "invalid_value",
            messages=[{"role": "tool", "content": "a"}],
        ),
        anthropic(
            "no content",
            "messages[0].content",
            "invalid_type",
            messages=[{"role": "user", "content": None}],
        ),
        anthropic(
            "an answer begun",
            "messages[1].role",
            refused,
            messages=[*HELLO, {"role": "assistant", "content": "It"}],
        ),
        block("of nothing", ".type", MISSING),
        block(
            "that is an image",
            "",
            refused,
            type="image",
            source={"type": "url", "url": "file:///etc/passwd"},
        ),
        block("that is a document", "", refused, type="document"),
        block(
            "of thoughts",
            "",
            refused,
            role="assistant",
            type="thinking",
            thinking="hm",
            signature="x",
        ),
        block("without its text", ".text", MISSING, type="text"),
        block(
            "of use without input",
            ".input",
            MISSING,
            role="assistant",
            type="tool_use",
            id="a",
            name="f",
        ),
        block(
            "of use that is the user's", "", refused, type="tool_use", id="a", name="f", input={}
        ),
        block(
            "with input that is text",
            ".input",
            "invalid_type",
            role="assistant",
            type="tool_use",
            input="{}",
        ),
        block("that answers nothing", ".tool_use_id", MISSING, type="tool_result", content="1"),
        block(
            "that answers with an image",
            ".content[0]",
            refused,
            type="tool_result",
            tool_use_id="a",
            content=[{"type": "image"}],
        ),
        anthropic("a system of numbers", "system", "invalid_type", system=5),
        anthropic("a system of images", "system[0]", refused, system=[{"type": "image"}]),
        anthropic("too hot", "temperature", "decimal_above_max_value", temperature=1.5),
        anthropic(
            "thoughts", "thinking", refused, thinking={"type": "enabled", "budget_tokens": 1024}
        ),
        anthropic("an effort", "output_config.effort", refused, output_config={"effort": "max"}),
        anthropic(
            "a format of no kind",
            "output_config.format.type",
            "invalid_value",
            output_config={"format": {"type": "xml"}},
        ),
        anthropic("chat's name for stops", "stop", refused, stop=["a"]),
        anthropic("a stop of nothing", "stop_sequences[0]", "invalid_value", stop_sequences=[""]),
        anthropic(
            "a tool of the server",
            "tools[0].type",
            refused,
            tools=[{"type": "bash_20250124", "name": "bash"}],
        ),
        anthropic(
            "a tool without a schema", "tools[0].input_schema", MISSING, tools=[{"name": "f"}]
        ),
        anthropic(
            "a tool of another name",
            "tools[0].name",
            "invalid_value",
            tools=[{**tool, "name": "a b"}],
        ),
        anthropic(
            "a choice of no tool",
            "tool_choice",
            "invalid_value",
            tools=[tool],
            tool_choice={"type": "tool", "name": "g"},
        ),
        anthropic(
            "a choice without its name",
            "tool_choice.name",
            MISSING,
            tools=[tool],
            tool_choice={"type": "tool"},
        ),
        anthropic(
            "a choice of no kind",
            "tool_choice.type",
            "invalid_value",
            tools=[tool],
            tool_choice={"type": "maybe"},
        ),
        anthropic(
            "words without end",
            "messages",
            "context_length_exceeded",
            messages=said("a " * 100_000),
        ),
        Hostile("messages: no JSON", 400, None, "invalid_json", b"{", MESSAGES),
        Hostile(
            "messages: counting nothing", 400, "model", MISSING, b"{}", f"{MESSAGES}/count_tokens"
        ),
        Hostile(
            "messages: counting for nobody",
            404,
            "model",
            "model_not_found",
            json.dumps({**BASE, "model": "x"}).encode(),
            f"{MESSAGES}/count_tokens",
        ),
    ]


TABLE: list[Hostile] = [
    *_json(),
    *_shapes(),
    *_numbers(),
    *_headers(),
    *_paths(),
    *_responses(),
    *_messages(),
]
