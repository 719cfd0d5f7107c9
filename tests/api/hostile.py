"""Requests that nobody sends by accident, and what each must be answered with."""

from __future__ import annotations

import gzip
import json
from typing import Any, NamedTuple

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
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


TABLE: list[Hostile] = [*_json(), *_shapes(), *_numbers(), *_headers(), *_paths()]
