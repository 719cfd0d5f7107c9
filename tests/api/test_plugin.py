"""The gateway on an application that belongs to somebody else."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from click import Group
from litestar import Litestar, Response, get
from litestar.testing import AsyncTestClient
from rich.logging import RichHandler

from gateway.audit.base import AuditLog
from gateway.audit.query import DecisionReader
from gateway.backends.scripted import ScriptedBackend
from gateway.config import AuditConfig, BackendConfig, GatewayConfig, LogConfig
from gateway.errors import ConfigError, Unavailable
from gateway.plugin import GatewayPlugin
from gateway.runtime import running
from gateway.types import Caller, ChatRequest, Job, Message

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
Make = Callable[..., GatewayConfig]


@get("/mine")
async def mine() -> dict[str, str]:
    return {"host": "ok"}


@get("/broken")
async def broken() -> None:
    raise ValueError("the host's own trouble")


def host(config: GatewayConfig, **options: Any) -> Litestar:
    return Litestar(
        [mine, broken],
        plugins=[GatewayPlugin(config, path="/llm")],
        logging_config=None,
        **options,
    )


async def test_it_answers_beside_the_hosts_own_routes(make_config: Make) -> None:
    async with AsyncTestClient(host(make_config())) as client:
        answer = await client.post("/llm/v1/chat/completions", json=ASK)
        stream = await client.post("/llm/v1/chat/completions", json={**ASK, "stream": True})

        assert answer.json()["object"] == "chat.completion"
        assert stream.text.endswith("data: [DONE]\n\n")
        assert (await client.get("/mine")).json() == {"host": "ok"}
        assert (await client.get("/llm/healthz")).status_code == 200


async def test_the_hosts_errors_and_settings_stay_its_own(make_config: Make) -> None:
    app = host(make_config())
    async with AsyncTestClient(app, raise_server_exceptions=False) as client:
        assert "error" not in (await client.get("/nowhere")).json()
        assert "error" not in (await client.get("/broken")).json()
        assert (await client.get("/llm/v1/models/none")).json()["error"]["code"]

    assert not app.exception_handlers
    assert app.logging_config is None
    assert not app.middleware
    assert app.guards == []


async def test_the_hosts_hooks_see_our_responses(make_config: Make) -> None:
    async def after(response: Response[Any]) -> Response[Any]:
        response.headers["x-host"] = "yes"
        return response

    async with AsyncTestClient(host(make_config(), after_request=after)) as client:
        for body in (ASK, {**ASK, "stream": True}):
            response = await client.post("/llm/v1/chat/completions", json=body)
            assert response.status_code == 200
            assert response.headers["x-host"] == "yes"


async def test_the_hosts_lifespan_runs_too(make_config: Make) -> None:
    events = []

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        events.append("start")
        yield
        events.append("stop")

    async with AsyncTestClient(host(make_config(), lifespan=[lifespan])) as client:
        assert (await client.get("/llm/readyz")).status_code == 200

    assert events == ["start", "stop"]


async def test_two_gateways_in_one_process_share_nothing(make_config: Make) -> None:
    first = GatewayPlugin(make_config({"replies": ["first"]}), path="/one")
    second = GatewayPlugin(make_config({"replies": ["second"]}), path="/two")

    app = Litestar([mine], plugins=[first, second], logging_config=None)
    async with AsyncTestClient(app) as client:
        texts = [
            (await client.post(f"/{name}/v1/chat/completions", json=ASK)).json()["choices"][0]
            for name in ("one", "two")
        ]

    assert [choice["message"]["content"] for choice in texts] == ["first", "second"]


async def test_before_the_start_and_after_the_end_there_is_no_gateway(make_config: Make) -> None:
    plugin = GatewayPlugin(make_config())
    app = Litestar(plugins=[plugin], logging_config=None)
    with pytest.raises(Unavailable):
        await plugin.gateway()

    async with app.lifespan():
        assert (await plugin.gateway()).status().ready

    with pytest.raises(Unavailable):
        await plugin.gateway()


def test_the_commands_join_the_hosts_command_line(make_config: Make) -> None:
    cli = Group("litestar")

    GatewayPlugin(make_config()).on_cli_init(cli)

    assert isinstance(cli.commands["gateway"], Group)
    assert cli.commands["gateway"].get_command(None, "serve") is not None  # type: ignore[arg-type]


class Clumsy(ScriptedBackend):
    """Raises while the prompt is in its local variables, and in those of every caller."""

    async def generate(self, job: Job) -> Any:
        (said,) = job.request.texts()
        letters = dict(enumerate(said))
        raise LookupError(f"no rule for {len(letters)} letters")


def rich_tracebacks() -> None:
    structlog.configure(
        processors=[structlog.dev.ConsoleRenderer()],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    logging.basicConfig(level="DEBUG", force=True, handlers=[RichHandler(rich_tracebacks=True)])


@pytest.fixture
def _process_settings() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    structlog.reset_defaults()
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.parametrize(
    "configure", [structlog.reset_defaults, rich_tracebacks], ids=["defaults", "rich"]
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.usefixtures("_process_settings")
async def test_a_prompt_never_gets_into_the_log_of_the_host(
    make_config: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    configure: Callable[[], None],
    stream: bool,
) -> None:
    monkeypatch.setattr(ScriptedBackend, "generate", Clumsy.generate)
    configure()
    secret = "Zyx pains"
    ask = {**ASK, "messages": [{"role": "user", "content": secret}], "stream": stream}

    async with AsyncTestClient(host(make_config())) as client:
        answer = await client.post("/llm/v1/chat/completions", json=ask)

    output = capsys.readouterr()
    assert answer.status_code == 500
    assert "LookupError: no rule for 9 letters" in output.out
    everything = output.out + output.err + caplog.text + answer.text
    assert "Zyx" not in everything
    assert "no rule" not in answer.text
    lines = [line for line in output.out.splitlines() if line.startswith("{")]
    assert [json.loads(line)["event"] for line in lines] == ["backend_failed", "request"]


async def test_the_plugin_logs_as_its_configuration_says(
    make_config: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    for level, lines in (("info", 1), ("error", 0)):
        async with AsyncTestClient(host(make_config(log=LogConfig(level)))) as client:
            await client.post("/llm/v1/chat/completions", json=ASK)
        assert lines == len(capsys.readouterr().out.splitlines())


async def test_what_ran_bears_the_name_that_the_backend_has_in_the_configuration(
    make_config: Make,
) -> None:
    config = make_config()
    async with running(config) as (gateway, *_):
        request = ChatRequest("scripted", (Message("user", "hello"),))
        reply = await gateway.respond(request, Caller())
        assert [chunk async for chunk in reply]

    reader = await DecisionReader.open(config.audit.url)
    entry = await reader.get(reply.decision_id)
    await reader.aclose()
    assert entry is not None
    assert entry.outcome is not None
    assert entry.decision.backend == entry.outcome.execution.backend == "demo"
    assert entry.outcome.attestation == "ok"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": Path("/nowhere/policy.yaml")}, "no such file"),
        ({"classifiers": ("astrology",)}, "unknown name 'astrology'; known: "),
        ({"backends": {"a": BackendConfig("steam")}}, "unknown name 'steam'; known: "),
        ({"backends": {"a": BackendConfig("scripted", {"speed": 9})}}, "no option speed"),
        ({"audit": AuditConfig("mysql://here")}, "mysql"),
    ],
)
async def test_a_wrong_part_stops_the_start_with_a_reason(
    make_config: Make, change: dict[str, Any], message: str
) -> None:
    config = msgspec.structs.replace(make_config(), **change)

    with pytest.raises(ConfigError, match=message):
        async with running(config):
            pass


async def test_a_policy_that_names_an_unknown_backend_stops_the_start(make_config: Make) -> None:
    policy = "version: 1\nname: x\nrules: [{id: a, decide: {mode: standard, backend: gone}}]\n"

    with pytest.raises(ConfigError, match=r"policy\.yaml:3:.*'gone'"):
        async with running(make_config(policy=policy)):
            pass


async def test_a_failed_start_closes_what_had_been_started(
    make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway import runtime
    from gateway.audit.store import DecisionStore

    opened: list[AuditLog] = []
    closed: list[AuditLog] = []

    class Watched(DecisionStore):
        @classmethod
        async def open(cls, url: str, **options: Any) -> Any:
            store = await super().open(url, **options)
            opened.append(store)
            return store

        async def aclose(self) -> None:
            closed.append(self)
            await super().aclose()

    monkeypatch.setattr(runtime, "DecisionStore", Watched)
    config = msgspec.structs.replace(make_config(), backends={"a": BackendConfig("steam")})

    with pytest.raises(ConfigError):
        async with running(config):
            pass

    assert len(opened) == 1
    assert opened == closed


def test_importing_the_gateway_does_not_import_torch() -> None:
    import subprocess

    code = "import gateway, sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_a_policy_that_breaks_its_promise_is_not_started(make_config: Make) -> None:
    config = make_config(policy="version: 1\nname: x\ndefault: {mode: speculative}\n")
    assert config.policy is not None
    config.policy.with_name("policy_proof.yaml").write_text(
        "statements:\n  - {name: nothing is fast, never: {mode: [speculative, hybrid]}}\n"
    )
    with pytest.raises(ConfigError, match="the statement 'nothing is fast' is not true"):
        async with running(config):
            pass
