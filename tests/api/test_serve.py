"""``draftgate serve`` as a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click import Context
from click.testing import CliRunner

from gateway.audit.query import DecisionReader
from gateway.audit.record import OutcomeRecord
from gateway.cli import main
from gateway.cli.serve import refuse_strangers
from gateway.config import GatewayConfig
from gateway.errors import ConfigError

CONFIG = """\
server: {port: 0, shutdown_seconds: 1}
backends:
  demo: {type: scripted, options: {chunk_seconds: 0.05, replies: {"": "REPLY"}}}
classifiers: []
policy: policy.yaml
audit: {url: "sqlite:///DATABASE"}
"""
COMMAND = [sys.executable, "-c", "from gateway.cli import main; main()"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text("version: 1\nname: mine\n")
    path = tmp_path / "draftgate.yaml"
    text = CONFIG.replace("REPLY", "word " * 200).replace("DATABASE", str(tmp_path / "d.db"))
    path.write_text(text)
    return path


@contextmanager
def serving(config: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address; killed at the end, whatever happens."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("Draftgate listens on http://127.0.0.1:"), line
        assert process.stdout.readline().startswith("Policy mine, hash ")
        assert "No API keys" in process.stdout.readline()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def started(config: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with serving(config) as running:
        yield running


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def ask(url: str) -> Any:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "a"}], "stream": True}
    return httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20)


async def outcome_of(config: Path, decision_id: str) -> OutcomeRecord:
    reader = await DecisionReader.open(f"sqlite:///{config.parent / 'd.db'}")
    entry = await reader.get(decision_id)
    await reader.aclose()
    assert entry is not None
    assert entry.outcome is not None
    return entry.outcome


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_cleanly_and_tells_clients_that_wait_too_long(
    started: tuple[subprocess.Popen[str], str], config: Path, number: signal.Signals
) -> None:
    process, url = started
    with ask(url) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(number)
        rest = list(lines)
    process.wait(10)

    assert process.stdout is not None
    output = process.stdout.read()
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert "error" in json.loads(rest[-2].removeprefix("data: "))
    assert "data: [DONE]" not in rest
    outcome = await outcome_of(config, response.headers["x-draftgate-decision-id"])
    assert outcome.finish_reasons[0] == "cancelled"
    assert 0 < outcome.execution.usage.completion_tokens < 200


async def test_a_short_answer_may_still_end_after_the_signal(
    started: tuple[subprocess.Popen[str], str], config: Path
) -> None:
    process, url = started
    body = {"model": "scripted", "prompt": "a", "max_tokens": 8, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        rest = list(lines)
    process.wait(10)

    assert "data: [DONE]" in rest
    outcome = await outcome_of(config, response.headers["x-draftgate-decision-id"])
    assert outcome.finish_reasons[0] == "length"


def test_a_port_in_use_is_told_before_anything_is_loaded(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", "--config", str(config), "--port", str(port))

    assert result.returncode == 2
    assert f"127.0.0.1:{port}: the port is in use by another process" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not (config.parent / "d.db").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: no such file"),
        (["--policy", "/nowhere.yaml"], "/nowhere.yaml: no such file"),
        (["--host", "no.such.host.invalid"], "no such address"),
        (["--model", "x"], "no backend of type local"),
    ],
)
def test_a_wrong_option_is_a_message_and_exit_status_2(
    config: Path, arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(main, ["serve", "--config", str(config), *arguments])

    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_every_problem_of_a_file_is_told_with_its_place(config: Path) -> None:
    config.write_text("server: {prot: 1}\nadit: {}\n")

    result = CliRunner().invoke(main, ["serve", "--config", str(config)])

    assert result.exit_code == 2
    assert f"{config}:1:10: " in result.stderr
    assert f"{config}:2:1: " in result.stderr


def test_an_unknown_command_is_an_error_and_the_version_is_told() -> None:
    assert CliRunner().invoke(main, ["dance"]).exit_code == 2
    assert "draftgate, version 0." in CliRunner().invoke(main, ["--version"]).output


def test_commands_are_found_by_name_without_being_imported() -> None:
    code = "import gateway.cli, sys; assert 'gateway.cli.serve' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert main.list_commands(Context(main))[0] == "serve"


@pytest.mark.parametrize("drain", ["0", "0.5"])
def test_while_it_drains_it_is_not_ready_and_sends_new_requests_away(
    config: Path, drain: str
) -> None:
    config.write_text(config.read_text().replace("shutdown_seconds: 1", f"drain_seconds: {drain}"))
    with serving(config) as (process, url):
        check_drain(process, url)


def check_drain(process: subprocess.Popen[str], url: str) -> None:
    body = {"model": "scripted", "prompt": "a", "max_tokens": 60, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        while (ready := httpx.get(f"{url}/readyz")).status_code == 200:
            pass
        refused = httpx.post(f"{url}/v1/completions", json=body)
        alive = httpx.get(f"{url}/healthz")
        rest = list(lines)
    process.wait(20)
    assert process.stdout is not None
    output = process.stdout.read()

    assert ready.json()["status"] == "not_ready"
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert refused.json()["error"]["code"] == "unavailable"
    assert alive.status_code == 200
    assert "data: [DONE]" in rest
    assert process.returncode == 0, output
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_keys_it_listens_on_this_machine_alone(
    config: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAFTGATE_ALLOW_ANONYMOUS", raising=False)

    result = CliRunner().invoke(main, ["serve", "--config", str(config), "--host", host])

    assert result.exit_code == 2
    assert "no API keys are configured" in result.output
    assert "--allow-anonymous" in result.output


@pytest.mark.parametrize(
    ("text", "options", "variable"),
    [
        ("auth: {store: keys.json}", [], ""),
        ("auth: {allow_anonymous: true}", [], ""),
        ("", ["--allow-anonymous"], ""),
        ("", [], "1"),
    ],
)
def test_with_keys_or_when_it_is_meant_it_listens_anywhere(
    config: Path, monkeypatch: pytest.MonkeyPatch, text: str, options: list[str], variable: str
) -> None:
    config.write_text(f"{config.read_text()}{text}\n")
    monkeypatch.setenv("DRAFTGATE_ALLOW_ANONYMOUS", variable)
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["--config", str(config), "--host", "0.0.0.0", "--port", port, *options]
        result = CliRunner().invoke(main, ["serve", *arguments])

    assert "the port is in use" in result.output


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "127.9.9.9"])
def test_this_machine_needs_no_keys(address: str) -> None:
    refuse_strangers(GatewayConfig(), address)


@pytest.mark.parametrize("address", ["10.0.0.1", "192.0.2.1", "fe80::1%eth0", "2001:db8::1"])
def test_every_other_address_needs_them(address: str) -> None:
    with pytest.raises(ConfigError, match="no API keys"):
        refuse_strangers(GatewayConfig(), address)
