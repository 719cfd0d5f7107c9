"""Every field of the official client's requests is accounted for, in code and in the documentation."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import typing
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params as texts
from openai.types.chat import completion_create_params as chats
from openai.types.responses import response_create_params as responses

from gateway.api.fields import ENDPOINTS, IGNORED, treatment

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
FIELDS: dict[str, set[str]] = {
    "/v1/chat/completions": set(typing.get_type_hints(chats.CompletionCreateParamsStreaming)),
    "/v1/completions": set(typing.get_type_hints(texts.CompletionCreateParamsStreaming)),
    "/v1/responses": set(typing.get_type_hints(responses.ResponseCreateParamsStreaming)),
    # The peers hold this against Anthropic's own client.
    "/v1/messages": set(
        "max_tokens messages model cache_control container diagnostics inference_geo metadata "
        "output_config service_tier speed stop_sequences system thinking tool_choice tools "
        "user_profile_id workspace_id stream temperature top_p top_k".split()
    ),
}
ROW = re.compile(r"^\| `(\w+)` \| (honoured|refused|ignored)\b", re.MULTILINE)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_field_of_the_official_client_is_accounted_for(path: str) -> None:
    fields = FIELDS[path]

    assert len(fields) > 15
    assert {field for field in fields if treatment(field, path) is None} == set()


@pytest.mark.parametrize("path", ENDPOINTS)
def test_the_page_says_of_each_field_what_the_code_does(path: str) -> None:
    section = PAGE.read_text().split(f"## `POST {path}`")[1].split("\n## ")[0]
    rows = dict(ROW.findall(section))

    assert rows.keys() >= FIELDS[path]
    assert rows == {field: treatment(field, path) for field in rows}


def test_what_is_ignored_changes_nothing(server: Any) -> None:
    values: dict[str, Any] = {"store": True, "metadata": {"a": "b"}, "prompt_cache_options": {}}
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], "seed": 1}

    plain = server.post(body).json()["choices"]
    for field in IGNORED:
        answer = server.post({**body, field: values.get(field, "x")})
        assert answer.status_code == 200, field
        assert answer.json()["choices"] == plain, field


def test_more_than_four_stop_strings_are_refused(server: Any) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}

    assert server.post({**body, "stop": list("abcd")}).status_code == 200
    assert server.post({**body, "stop": list("abcde")}).json()["error"]["param"] == "stop"


def test_every_route_is_on_the_page(server: Any) -> None:
    page = PAGE.read_text()

    for path in server.get("/openapi.json").json()["paths"]:
        shown = re.sub(r"\{\w+_(\w+)\}", r"{\1}", path)
        assert f"{shown}`" in page, path


def test_the_example_works_as_it_stands(server: Any) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (example,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    command = example.replace("http://127.0.0.1:8080", server.url)
    command = re.sub(r'("model": )"[^"]*"', r'\1"scripted"', command)

    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)

    assert json.loads(run.stdout)["choices"][0]["message"]["content"] == "The answer is short."
