"""Other people's clients. They live in an environment of their own: ``make test-peers``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.api.fields import treatment

HERE = Path(__file__).parent / "peers"
PLACE = os.environ.get("DRAFTGATE_PEERS", "")
ARGUMENTS = '{"city": "Kraków"}'
CALL = f'<tool_call>{{"name": "weather", "arguments": {ARGUMENTS}}}</tool_call>'
REPLIES = {"weather": CALL, "": "The answer is short."}
EXPECTED = {
    "text": "The answer is short.",
    "streamed": "The answer is short.",
    "usage": 5,
    "calls": [["weather", {"city": "Kraków"}]],
}

pytestmark = pytest.mark.skipif(not PLACE, reason="other people's clients: run make test-peers")


@pytest.fixture(scope="module")
def gateway(make_config: Callable[..., Any], launch: Any) -> Iterator[Any]:
    with launch(make_config({"replies": REPLIES, "calls": "tagged"})) as live:
        yield live


def run(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("script", ["langchain.py", "lite.py", "messages.py", "responses.py"])
def test_a_python_client(gateway: Any, script: str) -> None:
    python = str(Path(PLACE).absolute() / "bin" / "python")

    found = json.loads(run(python, str(HERE / script), gateway.url))

    assert found == EXPECTED


def test_every_field_of_anthropics_client_is_accounted_for() -> None:
    python = str(Path(PLACE).absolute() / "bin" / "python")
    ask = (
        "import json, typing; from anthropic.types import message_create_params as m;"
        "print(json.dumps(list(typing.get_type_hints(m.MessageCreateParamsStreaming))))"
    )

    fields = json.loads(run(python, "-c", ask))

    assert len(fields) > 15
    assert {field for field in fields if treatment(field, "/v1/messages") is None} == set()


def test_the_javascript_client(gateway: Any, tmp_path: Path) -> None:
    modules = Path(PLACE).absolute() / "node_modules"
    if shutil.which("node") is None or not modules.is_dir():
        pytest.skip("node, or the package openai from npm, is not installed")
    # Modules are looked for beside the script.
    (tmp_path / "node_modules").symlink_to(modules)
    script = tmp_path / "client.mjs"
    shutil.copy(HERE / "client.mjs", script)

    assert json.loads(run("node", str(script), gateway.url)) == EXPECTED


def test_the_compliance_suite(gateway: Any) -> None:
    """All of it but images, which are refused, and a demanded call, which no script can be held to."""
    tool = str(Path(PLACE).absolute() / "bin" / "llm-comply")
    options = ["--format", "openai-chat", "--json", "-k", "none", "-m", "scripted"]
    done = subprocess.run(
        [tool, "-u", f"{gateway.url}/v1", *options], capture_output=True, text=True, timeout=120
    )

    results = json.loads(done.stdout)["results"]
    assert len(results) >= 8
    failed = {result["id"] for result in results if result["status"] == "failed"}
    assert failed <= {"chat-image-input", "chat-tool-calling"}, done.stdout
