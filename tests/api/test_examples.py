"""The examples, run as they are."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_quickstart_shows_how_each_answer_was_decoded(server: Any) -> None:
    command = [sys.executable, str(EXAMPLES / "quickstart.py"), f"{server.url}/v1"]

    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    modes = [line.split()[-1] for line in run.stdout.splitlines() if "x-draftgate-mode" in line]
    assert modes == ["speculative", "standard", "hybrid"]
    assert run.stdout.count("The answer is short.") == 3


async def test_the_plugin_example_serves_both_applications(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = runpy.run_path(str(EXAMPLES / "plugin_in_your_app.py"))["app"]

    async with AsyncTestClient(app) as client:
        assert (await client.get("/")).json()["hello"] == "from the host"
        ask = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
        answer = await client.post("/llm/v1/chat/completions", json=ask)

    assert answer.json()["choices"][0]["message"]["content"] == "Hello from the gateway."
    assert answer.headers["x-draftgate-mode"] == "standard"
