"""The servers that are measured, each a process of its own on one core where the system can say so."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

ROOT = Path(__file__).parents[2]
KEY = "load-benchmark-key"
REPLY = "One two three four five six seven eight nine ten."
START_SECONDS = 120.0


class Server(NamedTuple):
    """A server that runs."""

    url: str
    process: int


@contextmanager
def gateway(*, bare: bool = False, chunk_seconds: float = 0.0) -> Iterator[Server]:
    """A gateway with keys, the shipped classifiers and policy, and a durable log.

    ``bare``: without keys, classifiers and rules, which is what only the server itself costs.
    """

    port = _free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {
            "server": {"port": port, "max_connections": 4096},
            "backends": {
                "scripted": {
                    "type": "scripted",
                    "options": {
                        "replies": [REPLY],
                        "chunk_seconds": chunk_seconds,
                        "max_running": 4096,
                    },
                }
            },
            "audit": {"url": f"sqlite:///{folder}/decisions.db"},
            "log": {"level": "error"},
        }
        if bare:
            (folder / "policy.yaml").write_text("version: 1\nname: bare\nrules: []\n")
            config |= {"policy": "policy.yaml", "classifiers": []}
        else:
            digest = hashlib.sha256(KEY.encode()).hexdigest()
            config["auth"] = {"keys": [{"id": "load", "sha256": digest}]}
        path = folder / "draftgate.yaml"
        path.write_text(json.dumps(config))
        command = [sys.executable, "-c", "from gateway.cli import main; main()"]
        with _running([*command, "serve", "--config", str(path)], port, folder) as process:
            yield process


@contextmanager
def litellm(environment: Path, upstream: str) -> Iterator[Server]:
    """LiteLLM's proxy from the virtual environment at ``environment``, before ``upstream``."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {
            "model_list": [
                {
                    "model_name": "scripted",
                    "litellm_params": {
                        "model": "openai/scripted",
                        "api_base": f"{upstream}/v1",
                        "api_key": KEY,
                    },
                }
            ],
            "general_settings": {"master_key": f"sk-{KEY}"},
        }
        path = folder / "litellm.yaml"
        path.write_text(json.dumps(config))
        command = [str(environment / "bin" / "litellm"), "--config", str(path)]
        with _running([*command, "--port", str(port)], port, folder) as process:
            yield process


@contextmanager
def _running(command: list[str], port: int, folder: Path) -> Iterator[Server]:
    variables: Mapping[str, str] = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DRAFTGATE_AUDIT_KEY": "a key for measuring, of enough characters",
    }
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, env=variables, cwd=ROOT, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            _await(url, process, folder / "output.txt")
            yield Server(url, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(url: str, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/v1/models", timeout=2).status_code < 500:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the server does not answer:\n{output.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
