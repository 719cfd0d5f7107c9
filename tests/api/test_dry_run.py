"""What the commands say of a request is what the gateway says of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway import config
from gateway.cli import main

CALL = {"name": "lookup", "arguments": '{"question": "What is the daily dose of ibuprofen?"}'}
USER = {"role": "user", "content": "Write a Python function that sorts a list."}
BODIES: dict[str, dict[str, Any]] = {
    "text": {"messages": [USER]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]},
    "tool calls": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": CALL}]},
            {"role": "tool", "tool_call_id": "c", "content": "Take 1200 mg, twice a day."},
        ]
    },
    "function call": {"messages": [USER, {"role": "assistant", "function_call": CALL}, USER]},
    "refusal": {
        "messages": [
            USER,
            {"role": "assistant", "refusal": "I cannot say which dose of insulin is safe."},
            USER,
        ]
    },
    "refused part": {
        "messages": [
            {
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "No diagnosis of chest pain here."}],
            },
            USER,
        ]
    },
    "fields that nobody renders": {
        "messages": [{**USER, "name": "the ibuprofen dose for my child", "tool_call_id": "dose"}]
    },
    "developer": {"messages": [{"role": "developer", "content": "Answer in Latin."}, USER]},
    "another language": {
        "messages": [{"role": "user", "content": "Напиши функцию, которая сортирует список."}]
    },
    "prompt": {"prompt": "def sort_names(names):"},
    "prompt in a list": {"prompt": ["What is the daily dose of ibuprofen?"]},
    "token ids": {"prompt": [1, 2, 3]},
    "knobs": {"messages": [USER], "stream": True, "n": 2, "temperature": 0.1},
}
REFUSED: dict[str, dict[str, Any]] = {
    "tools": {"messages": [USER], "tools": [{"type": "function"}]},
    "no content": {"messages": [{"role": "user"}]},
    "image": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "template": {"messages": [USER], "chat_template": "{{ messages }}"},
    "temperature": {"prompt": "a", "temperature": 9},
}
CONFIGURATION = """\
backends: {demo: {type: scripted}}
audit: {url: "sqlite:///%s/decisions.db"}
"""


@pytest.fixture(scope="module")
def live(launch: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gateway with all classifiers and the shipped policy, and its configuration in a file."""
    folder = tmp_path_factory.mktemp("configured")
    path = folder / "draftgate.yaml"
    path.write_text(CONFIGURATION % folder)
    with launch(config.load(path)) as started:
        started.configuration = path
        yield started


@pytest.fixture
def command(live: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv(config.CONFIG_VARIABLE, str(live.configuration))
    return lambda *arguments: CliRunner().invoke(main, list(map(str, arguments)))


def plain(value: msgspec.Struct) -> dict[str, Any]:
    return dict(json.loads(msgspec.json.encode(value)))


def post(live: Any, body: dict[str, Any]) -> Any:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    return live.post({"model": "scripted", **body}, path)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_dry_run_measures_and_decides_what_the_gateway_does(
    live: Any, command: Callable[..., Result], tmp_path: Path, body: dict[str, Any]
) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    response = post(live, body)
    assert response.status_code == 200, response.text
    record = live.entry(response.headers["x-draftgate-decision-id"]).decision

    signals = json.loads(command("classify", "--request", path, "--json").output)
    explained = json.loads(command("policy", "explain", "--request", path, "--json").output)

    live_signals, live_decision = plain(record.signals), plain(record.decision)
    assert (signals["items"], signals["error"]) == (live_signals["items"], live_signals["error"])
    assert signals["classifiers"] == live_signals["classifiers"]
    assert explained["signals"] == signals
    assert explained["decision"] == live_decision


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_what_the_gateway_refuses_a_dry_run_refuses_in_the_same_words(
    live: Any, command: Callable[..., Result], tmp_path: Path, body: dict[str, Any]
) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    refused = post(live, body)
    assert refused.status_code == 400

    for arguments in (("classify",), ("policy", "explain")):
        result = command(*arguments, "--request", path)

        assert result.exit_code == 2
        assert refused.json()["error"]["message"] in result.output


def test_only_the_configured_classifiers_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "draftgate.yaml"
    path.write_text("classifiers: [context]\n")
    monkeypatch.setenv(config.CONFIG_VARIABLE, str(path))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments))

    text = "What is the daily dose of ibuprofen?"
    assert list(json.loads(run("classify", text, "--json").output)["classifiers"]) == ["context"]
    explained = json.loads(run("policy", "explain", "--prompt", text, "--json").output)
    # As in the gateway: what a rule reads is missing, so nobody knows what the request is about.
    assert explained["decision"]["rule"] == "on_classifier_error"
    refused = run("classify", text, "--weights", "ours.npz")
    assert refused.exit_code == 2
    assert "not configured" in refused.output
