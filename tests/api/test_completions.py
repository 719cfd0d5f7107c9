from __future__ import annotations

from typing import Any

import pytest


def post(server: Any, prompt: Any, **fields: Any) -> Any:
    return server.post({"model": "scripted", "prompt": prompt, **fields}, "/v1/completions")


@pytest.mark.parametrize("prompt", ["hello", ["hello"], [1, 2, 3], [[1, 2, 3]], ""])
def test_one_prompt_in_every_form(server: Any, prompt: Any) -> None:
    response = post(server, prompt)

    body = response.json()
    assert response.status_code == 200, body
    assert list(body) == [
        "id",
        "object",
        "created",
        "model",
        "choices",
        "system_fingerprint",
        "usage",
    ]
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "text": "The answer is short.",
            "index": 0,
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


def test_token_ids_are_decoded_in_the_standard_mode_because_nobody_read_them(server: Any) -> None:
    response = post(server, [1, 2, 3])

    assert response.headers["x-draftgate-mode"] == "standard"
    assert response.headers["x-draftgate-rule"] == "on_truncated_input"


def test_the_prompt_is_judged_like_a_message(server: Any) -> None:
    assert post(server, "write a function").headers["x-draftgate-mode"] == "speculative"
    assert post(server, "forbidden").status_code == 403


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": ["a", "b"]}, "prompt", "unsupported_parameter"),
        ({"prompt": [[1], [2]]}, "prompt", "unsupported_parameter"),
        ({"prompt": [1, "a"]}, "prompt", "unsupported_parameter"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"prompt": [[]]}, "prompt", "empty_array"),
        ({"prompt": [-1]}, "prompt", "invalid_value"),
        ({"prompt": None}, "prompt", "invalid_type"),
        ({"prompt": 5}, "prompt", "invalid_type"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
        ({"logprobs": 6}, "logprobs", "integer_above_max_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"echo": True}, "echo", "unsupported_parameter"),
        ({"suffix": "end"}, "suffix", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
    ],
)
def test_a_bad_value_is_a_400_that_names_the_parameter(
    server: Any, fields: dict[str, Any], param: str, code: str
) -> None:
    response = server.post({"model": "scripted", "prompt": "a", **fields}, "/v1/completions")

    error = response.json()["error"]
    assert response.status_code == 400
    assert (param, code) == (error["param"], error["code"]), error


def test_without_max_tokens_it_stops_after_sixteen(server: Any) -> None:
    choice = post(server, "long").json()["choices"][0]

    assert choice["finish_reason"] == "length"
    assert len(choice["text"].split()) == 16


def test_logprobs_have_the_completions_shape(server: Any) -> None:
    logprobs = post(server, "hello", logprobs=1).json()["choices"][0]["logprobs"]

    assert list(logprobs) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
    assert logprobs["tokens"] == ["The ", "answer ", "is ", "short."]
    assert logprobs["text_offset"] == [0, 4, 11, 14]
    assert logprobs["top_logprobs"][0] == {"The ": 0.0}


def test_parameters_that_ask_for_nothing_pass(server: Any) -> None:
    assert post(server, "a", echo=False, best_of=1, suffix=None).status_code == 200
