"""`draftgate bench` of a running gateway: what arrives is timed, counted and told apart by mode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.experiments import bench_report
from gateway.experiments.askers import AS_DECIDED, GatewayAsker, Seen, first_model
from gateway.experiments.bench import Bench, Load, Timing, percentiles, summed_up, sweep
from gateway.experiments.connection import Connection
from gateway.experiments.prompts import Prompt
from gateway.types import Sampling
from tests.live import LiveServer


def run(server: LiveServer, *arguments: str) -> Result:
    line = ["bench", "--url", server.url, "--max-tokens", "16", "--concurrency", "1,2"]
    return CliRunner().invoke(main, [*line, "--requests", "4", *arguments])


def test_a_gateway_is_measured_and_its_modes_are_told_apart(
    server: LiveServer, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Write a function."}\n{"prompt": "Hello."}\n')
    out = tmp_path / "out"

    result = run(server, str(prompts), "--out", str(out))
    # What the server logs is on standard output too, which is this process's: the file is read.
    found = json.loads((out / "summary.json").read_text())
    again = run(server, str(prompts), "--out", str(out))

    assert (result.exit_code, again.exit_code) == (0, 0), result.output
    assert "as decided" in result.output
    assert json.loads((out / "summary.json").read_text()) == found  # nothing was measured again
    lines = {(line["arm"], line["concurrency"]): line for line in found["lines"]}
    assert set(lines) == {(arm, n) for arm in (AS_DECIDED, "standard") for n in (1, 2)}
    assert lines[AS_DECIDED, 2]["modes"] == {"speculative": 2, "standard": 2}
    assert lines["standard", 2]["modes"] == {"standard": 4}
    for line in found["lines"]:
        assert (line["answers"], line["failed"]) == (4, 0)
        assert line["tokens_per_second"] > 0
        assert 0 < line["first_token"]["p50"] <= line["total"]["p50"]
    assert (out / "results.jsonl").read_text().count("\n") == 4
    first, *rows = (out / "results.jsonl").read_text().splitlines(keepends=True)
    assert json.loads(first)["model"] == found["model"] != "the configured model"
    # As if the gateway had served another model then: what is missing is not put beside it.
    other = json.dumps({**json.loads(first), "model": "another"}) + "\n"
    (out / "results.jsonl").write_text("".join([other, *rows[1:]]))
    mixed = run(server, str(prompts), "--out", str(out))
    assert mixed.exit_code == 2
    assert "another model's" in mixed.output
    ElementTree.fromstring((out / "plot.svg").read_text())


def test_answers_that_fail_are_counted_with_their_reason(
    server: LiveServer, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "forbidden"}\n{"prompt": "Hello."}\n')

    result = run(server, str(prompts), "--mode", "standard", "--out", str(tmp_path))

    assert result.exit_code == 1
    line = json.loads((tmp_path / "summary.json").read_text())["lines"][0]
    assert (line["answers"], line["failed"]) == (2, 2)
    assert line["errors"] == ["2 times: 403: This is not answered here."]


def test_what_keeps_it_from_starting_is_said(server: LiveServer, tmp_path: Path) -> None:
    unknown = run(server, "--key", f"@{tmp_path / 'none'}")
    nobody = CliRunner().invoke(main, ["bench", "--url", "http://127.0.0.1:9"])
    nonsense = CliRunner().invoke(main, ["bench", "--url", "localhost"])
    own = run(server, "--num-speculative-tokens", "3")
    keyless = CliRunner().invoke(main, ["bench", "--key", "k"])

    for result, message in (
        (unknown, "cannot read"),
        (nobody, "does not answer"),
        (nonsense, "is no address"),
        (keyless, "give its --url"),
        (own, "How a gateway drafts is its own"),
    ):
        assert result.exit_code == 2, result.output
        assert message in result.output


async def test_a_connection_is_kept_and_says_what_it_does_not_understand(
    server: LiveServer,
) -> None:
    connection = Connection(server.url)
    head, body = await connection.read("GET", "/healthz")
    writer = connection._writer
    missing, _ = await connection.read("GET", "/nothing")

    assert (head.status, missing.status, connection._writer is writer) == (200, 404, True)
    assert body
    connection.close()
    assert await first_model(server.url, None)


@pytest.mark.parametrize("late", [False, True])
async def test_a_kept_connection_that_the_server_has_ended_is_opened_again(late: bool) -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        if late and asked == 1:  # It ends while the next request is under way.
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        connection = Connection(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        bodies = [(await connection.read("GET", "/"))[1] for _ in range(2)]
        connection.close()

    assert (bodies, asked) == ([b"ok", b"ok"], 2)


async def test_a_server_that_answers_nothing_is_asked_once() -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        connection = Connection(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ConnectionError, match="ended the connection"):
            await connection.read("GET", "/")

    assert asked == 1


async def test_a_stream_that_breaks_off_is_a_failure() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        event = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\nff\r\nda")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        asker = GatewayAsker(f"http://127.0.0.1:{port}", "key", "m")
        seen = [one async for one in asker.ask(Prompt(prompt="x"), AS_DECIDED, Sampling())]
        await asker.aclose()

    assert [one.piece for one in seen] == [True, False]
    assert "within an answer" in seen[1].error


# ---- what is made of timings ----------------------------------------------------------------------


class Script:
    """Gives two pieces, and notes how many were asked at once."""

    def __init__(self) -> None:
        self.now = self.most = self.asked = 0

    async def ask(self, prompt: Prompt, arm: str, sampling: Sampling) -> AsyncIterator[Seen]:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        yield Seen(piece=True, mode="standard")
        yield Seen(piece=True)
        self.now -= 1
        yield Seen(tokens=5)

    async def aclose(self) -> None:
        """Nothing."""


async def test_no_more_are_asked_at_once_than_is_said_and_the_first_is_not_counted() -> None:
    script: Any = Script()
    done: list[int] = []

    found = [
        load
        async for load in sweep(
            script,
            [Prompt(id="a", prompt="x")],
            [("standard", 1), ("standard", 3)],
            Sampling(),
            requests=7,
            seed=0,
            done=lambda: done.append(1),
        )
    ]

    assert [len(load.timings) for load in found] == [7, 7]
    assert (script.most, script.asked, len(done)) == (3, 15, 14)
    assert all(len(timing.gaps) == 1 and timing.tokens == 5 for timing in found[0].timings)


def timing(first: float | None, total: float, tokens: int, error: str = "") -> Timing:
    return Timing(
        prompt="p", mode="hybrid", tokens=tokens, first=first, total=total, gaps=(0.1,), error=error
    )


def test_rates_are_over_the_answers_that_did_not_fail() -> None:
    timings = (timing(1.0, 3.0, 5), timing(2.0, 2.0, 1), timing(None, 9.0, 0, "500: no"))

    found = summed_up(Load(arm="a", concurrency=2, seconds=4.0, timings=timings))
    nothing = summed_up(Load(arm="a", concurrency=2, seconds=4.0, timings=timings[2:]))

    assert (found.answers, found.failed, found.modes) == (2, 1, {"hybrid": 2})
    assert (found.tokens_per_second, found.requests_per_second) == (1.5, 0.5)
    assert (found.first_token.p50, found.inter_token.p50, found.total.p90) == (1.5, 0.5, 2.9)
    assert found.errors == ("1 times: 500: no",)
    assert (nothing.total.p50, nothing.tokens_per_second) == (None, 0.0)
    bench = Bench(target="t", model="m", planned=3, lines=(found, nothing))
    (grid,) = bench_report.grids(bench)
    assert "Interrupted: 2 of 3" in grid.notes[1]
    assert "failed 1 times: 500: no" in grid.notes[2]
    ElementTree.fromstring(bench_report.plot(bench))


def test_percentiles_lie_between_values() -> None:
    found = percentiles([float(n) for n in range(1, 102)])

    assert (found.p50, found.p90, found.p99) == (51.0, 91.0, 100.0)
    assert percentiles([]).p50 is None


def test_the_engine_itself_is_measured(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "cost_model": "off"}
    config = tmp_path / "draftgate.yaml"
    config.write_text(json.dumps({"backends": {"local": {"type": "local", "options": options}}}))
    monkeypatch.setenv("DRAFTGATE_CONFIG", str(config))
    line = ["bench", "--model", str(tiny_model), "--max-tokens", "6", "--requests", "3", "--json"]

    result = CliRunner().invoke(main, [*line, "--concurrency", "2", "--mode", "standard,hybrid"])

    assert result.exit_code == 0, result.output
    first, second = json.loads(result.stdout)["lines"]
    assert (first["modes"], second["modes"]) == ({"standard": 3}, {"hybrid": 3})
