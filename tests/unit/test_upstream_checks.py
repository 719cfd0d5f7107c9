"""What is seen of a server from outside: its features, its faults, and the command that shows them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from gateway.backends.openai.checking import Report, check_server
from gateway.backends.openai.checks import CHECKS
from gateway.backends.openai.inspection import Finding, Place, inspect
from gateway.backends.openai.probing import PROBES, probe
from gateway.backends.openai.replica import STANDARD, Arm, Replica
from gateway.backends.openai.settings import Pace
from gateway.backends.openai.watch import Watch
from gateway.cli.upstream import upstream
from gateway.errors import Unavailable
from gateway.log import build_log
from tests.upstreams import MODEL, ScriptedUpstream


class Toy:
    """A model of words: what it says follows from seed, temperature and the parameters it heeds.

    ``deaf`` to a parameter, or faulty in another way, as servers that speculate have been.
    """

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        self.busy = 0

    async def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(200)
        if request.url.path == "/metrics":
            return httpx.Response(200, text="vllm:num_requests_running 0\n")
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": MODEL, "max_model_len": 99}]})
        asked = json.loads(request.content)
        self.busy += 1
        await asyncio.sleep(0)
        crowded = self.busy > 1
        await asyncio.sleep(0)
        self.busy -= 1
        if "refuses" in self.faults and "min_p" in asked:
            return httpx.Response(400, json={"error": {"message": "no min_p"}})
        return self._stream(asked) if asked.get("stream") else self._whole(asked, crowded)

    def _whole(self, asked: Mapping[str, Any], crowded: bool) -> httpx.Response:
        tokens, reason = self._tokens(asked, crowded)
        entries = [self._logprob(token) for token in tokens] if asked.get("logprobs") else None
        if "logprobs after stop" in self.faults and entries is not None and asked.get("stop"):
            entries += [self._logprob(asked["stop"][0]), self._logprob("more")]
        choice = {
            "message": {"content": "".join(tokens)},
            "finish_reason": reason,
            "logprobs": None if entries is None else {"content": entries},
        }
        ended = 0 if asked.get("continue_final_message") else 3
        count = 1 if "n" in self.faults else asked.get("n") or 1
        usage = {"prompt_tokens": 9 + ended, "completion_tokens": len(tokens)}
        return httpx.Response(200, json={"choices": [choice] * count, "usage": usage})

    def _stream(self, asked: Mapping[str, Any]) -> httpx.Response:
        tokens, _ = self._tokens(asked, False)
        if "stream" in self.faults:
            tokens = tokens[1:]
        if "characters" in self.faults:
            tokens = [*tokens[:2], "\ufffd", *tokens[2:]]
        events = [{"choices": [{"index": 0, "delta": {"content": token}}]} for token in tokens]
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return httpx.Response(200, text=data + "data: [DONE]\n\n")

    def _tokens(self, asked: Mapping[str, Any], crowded: bool) -> tuple[list[str], str]:
        if "response_format" in asked and "json_schema" not in self.faults:
            return ['{"kind":', '"probe"}'], "stop"
        longest = asked["max_tokens"] + ("length" in self.faults)
        tokens = [f"{word} " for word in self._words(asked, crowded)][:longest]
        reason = "length" if "reason" not in self.faults else "stop"
        for stop in asked.get("stop") or ():
            text = "".join(tokens)
            if stop in text and "stop" not in self.faults:
                return [text[: text.index(stop)]], "stop"
        return tokens, reason

    def _words(self, asked: Mapping[str, Any], crowded: bool) -> list[str]:
        if "logit_bias" in asked and "logit_bias" not in self.faults:
            (token,) = asked["logit_bias"]
            forced = [f"t{token}"] * 60
            # As where the bias is applied to the first position of a draft alone.
            return forced if "bias" not in self.faults else [*forced[:3], "free", *forced]
        hot = asked["temperature"] > 0
        if asked.get("min_p") == 1.0 and "min_p" not in self.faults:
            hot = False
        if asked.get("top_k") == 1 and "top_k" not in self.faults:
            hot = False
        start = asked.get("seed", 5) * 7 if hot and "seed" not in self.faults else 0
        start = start + 1 if "seed" in self.faults and hot else start
        if crowded and "neighbours" in self.faults:
            start += 50
        return [f"word{start + place}" for place in range(60)]

    def _logprob(self, token: str) -> dict[str, Any]:
        said = 0.0 if "certain" in self.faults else -0.5
        entry: dict[str, Any] = {"token": token, "logprob": said}
        if {"tie", "sure"} & set(self.faults):
            next_best = said - (0.02 if "tie" in self.faults else 2.0)
            likely = [{"token": token, "logprob": said}, {"token": "x", "logprob": next_best}]
            entry["top_logprobs"] = likely
        return entry


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> dict[str, Toy]:
    """Servers by their host; nothing goes over a wire."""
    found: dict[str, Toy] = {}

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host not in found:
            raise httpx.ConnectError("nobody is there")
        return await found[request.url.host].answer(request)

    def client(*_: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(answer))

    monkeypatch.setattr("gateway.backends.openai.checking.client_for", client)
    return found


async def report(toys: dict[str, Toy], *faults: str, twin: Toy | None = None) -> Report:
    toys["here"] = Toy(*faults)
    if twin is not None:
        toys["twin"] = twin
    return await check_server("http://here", MODEL, twin="http://twin" if twin else None)


def failing(found: Report) -> set[str]:
    return {result.check for result in found.results if result.verdict == "failed"}


async def test_a_sound_server_passes_every_check(toys: dict[str, Toy]) -> None:
    found = await report(toys, twin=Toy())

    assert {result.check: result.verdict for result in found.results} == dict.fromkeys(
        [*CHECKS, "against"], "ok"
    )
    assert (found.finding.kind, found.has_drafted, found.finding.max_length) == ("vllm", False, 99)


@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        ("length", {"exact_length"}),
        ("stop", {"stop_string"}),
        ("logprobs after stop", {"stop_logprobs"}),
        ("certain", {"logprobs"}),
        ("min_p", {"min_p"}),
        ("refuses", {"min_p"}),
        ("top_k", {"top_k_one"}),
        ("logit_bias", {"logit_bias"}),
        ("bias", {"logit_bias_everywhere"}),
        ("json_schema", {"json_schema"}),
        ("neighbours", {"seed_among_neighbours", "greedy_among_neighbours"}),
        ("stream", {"stream_is_whole"}),
        ("characters", {"stream_is_whole", "whole_characters"}),
        ("n", {"choices"}),
    ],
)
async def test_each_known_fault_fails_its_check(
    toys: dict[str, Toy], fault: str, checks: set[str]
) -> None:
    assert checks <= failing(await report(toys, fault))
    assert failing(await report(toys)) == set()


async def test_twins_that_say_something_else_are_told_apart(toys: dict[str, Toy]) -> None:
    class Other(Toy):
        def _words(self, asked: Mapping[str, Any], crowded: bool) -> list[str]:
            return [f"other{place}" for place in range(60)]

    assert failing(await report(toys, twin=Other())) == {"against"}


@pytest.mark.parametrize(("fault", "verdict"), [("tie", "near_tie"), ("sure", "failed")])
async def test_a_difference_where_the_server_was_undecided_is_a_near_tie(
    toys: dict[str, Toy], fault: str, verdict: str
) -> None:
    class Other(Toy):
        def _words(self, asked: Mapping[str, Any], crowded: bool) -> list[str]:
            words = super()._words(asked, crowded)
            return [*words[:3], "other", *words[4:]]

    found = await report(toys, "neighbours", fault, twin=Other())

    verdicts = {result.check: result.verdict for result in found.results}
    assert verdicts["greedy_among_neighbours"] == verdicts["against"] == verdict


@pytest.mark.parametrize("choices", [[3], {"a": 1}, [{"message": 3}], [{"logprobs": 3}]])
async def test_an_answer_that_cannot_be_read_fails_its_checks_and_not_the_command(
    toys: dict[str, Toy], choices: Any
) -> None:
    class Garbled(Toy):
        async def answer(self, request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                return httpx.Response(200, json={"choices": choices})
            return await super().answer(request)

    toys["here"] = toys["twin"] = Garbled()
    found = await check_server("http://here", MODEL, twin="http://twin")

    assert {result.check for result in found.results} == {*CHECKS, "against"}
    assert failing(found)


async def test_a_twin_that_is_down_is_seen_before_anything_is_asked(toys: dict[str, Toy]) -> None:
    class Counted(Toy):
        asked = 0

        async def answer(self, request: httpx.Request) -> httpx.Response:
            self.asked += request.method == "POST"
            return await super().answer(request)

    toys["here"] = here = Counted()
    with pytest.raises(Unavailable, match="twin"):
        await check_server("http://here", MODEL, twin="http://twin")
    assert here.asked == 0


async def test_what_a_server_honours_is_seen_from_its_answers() -> None:
    deaf = ("certain", "min_p", "json_schema", "logit_bias")
    for faults, expected in (((), set(PROBES)), (deaf, {"seed", "continuation"})):
        toy = Toy(*faults)
        async with httpx.AsyncClient(transport=httpx.MockTransport(toy.answer)) as client:
            found, complete = await probe(client, Place.of("http://here"), MODEL, None)
        assert complete
        assert {name for name, yes in found.items() if yes} == expected
        assert set(found) == set(PROBES)


class Drip(httpx.AsyncByteStream):
    """A page that never ends, though something of it comes again and again."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0)
            yield b"x"


@pytest.mark.parametrize("page", ["/health", "/metrics"])
async def test_a_page_that_drips_does_not_hold_up_a_look(page: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Drip() if request.url.path == page else None)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        found = await inspect(client, Place.of("http://here"), MODEL, {}, 0.02)

    assert not found.up
    assert "TimeoutError" in found.detail


class Flaky(Toy):
    """Answers nothing but what ``trouble`` says, from the fourth question on."""

    def __init__(self, trouble: httpx.Response | Exception) -> None:
        super().__init__()
        self.trouble: httpx.Response | Exception | None = trouble
        self.asked = 0

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked += request.method == "POST"
        if self.trouble is None or self.asked < 4:
            return await super().answer(request)
        if isinstance(self.trouble, Exception):
            raise self.trouble
        return self.trouble


def _watch(toy: Toy, client: httpx.AsyncClient) -> tuple[Watch, Arm]:
    arm = Arm(STANDARD, [Replica("http://here", MODEL, None, STANDARD, Pace())])
    return Watch("w", MODEL, {STANDARD: arm}, client, seconds=60.0, probes=True), arm


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.Response(429),
        httpx.Response(500),
        httpx.Response(200, json={"choices": [3]}),
        httpx.Response(200, json={"choices": {"a": 1}}),
        httpx.ReadTimeout("slow"),
    ],
)
async def test_an_arm_is_probed_again_where_a_question_was_not_answered(
    trouble: httpx.Response | Exception,
) -> None:
    toy = Flaky(trouble)
    async with httpx.AsyncClient(transport=httpx.MockTransport(toy.answer)) as client:
        watch, arm = _watch(toy, client)
        await watch.start(build_log("critical"), CollectorRegistry())
        assert set(arm.probed) < set(PROBES)
        asked, toy.trouble = toy.asked, None

        for _ in range(4):  # not at each look: a server that stays broken is not asked at each
            await watch.look()
            await asyncio.gather(*watch._probing())
        assert set(arm.probed) == set(PROBES)
        assert toy.asked < asked + 30
        asked = toy.asked
        await watch.look()
        await asyncio.gather(*watch._probing())
        assert toy.asked == asked
        await watch.aclose()


async def test_looks_go_on_while_an_arm_is_probed() -> None:
    class Silent(Toy):
        async def answer(self, request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                return httpx.Response(200, stream=Drip())
            return await super().answer(request)

    toy = Silent()
    async with httpx.AsyncClient(transport=httpx.MockTransport(toy.answer)) as client:
        watch, arm = _watch(toy, client)
        await watch.look()
        assert arm.usable
        (task,) = watch._probing()
        await watch.look()
        assert watch._probing() == [task]
        found = await probe(client, Place.of("http://here"), MODEL, None, seconds=0.02)
        assert found == ({}, False)
        await watch.aclose()
        assert task.cancelled()


async def test_a_server_that_does_not_answer_cannot_be_checked() -> None:
    with pytest.raises(Unavailable, match="nobody is there"):
        await check_server("http://away", MODEL)


PAGES: dict[str, tuple[dict[str, Any], Finding]] = {
    "sglang": (
        {
            "/metrics": "sglang:num_running_reqs 0\n",
            "/get_server_info": {"speculative_algorithm": "EAGLE3"},
        },
        Finding(up=True, kind="sglang", speculates=True, has_metrics=True),
    ),
    "plain sglang": (
        {
            "/metrics": "sglang:num_running_reqs 0\n",
            "/get_server_info": {"speculative_algorithm": None},
        },
        Finding(up=True, kind="sglang", speculates=False, has_metrics=True),
    ),
    "llama.cpp": (
        {
            "/v1/models": {"data": [{"id": "x", "owned_by": "llamacpp", "meta": {"n_ctx": 512}}]},
            "/props": {"default_generation_settings": {"params": {"speculative.types": "none"}}},
        },
        Finding(up=True, kind="llama.cpp", max_length=512),
    ),
    "drafting llama.cpp": (
        {
            "/v1/models": {"data": [{"id": "x", "owned_by": "llamacpp"}]},
            "/props": {"default_generation_settings": {"params": {"speculative.types": "draft"}}},
        },
        Finding(up=True, kind="llama.cpp", speculates=True),
    ),
    "vllm": (
        {
            "/metrics": "# HELP x\nvllm:num_requests_running 1\n"
            'vllm:spec_decode_num_drafts_total{model_name="m"} 0.0\n'
            'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 1.5e+01\n'
        },
        Finding(up=True, kind="vllm", drafted=15.0, has_metrics=True),
    ),
    "nothing known": ({}, Finding(up=True)),
    "garbage": ({"/v1/models": "<html>", "/metrics": "\0"}, Finding(up=True)),
}


@pytest.mark.parametrize("name", PAGES)
async def test_what_a_server_is_and_whether_it_speculates_is_seen_from_its_pages(name: str) -> None:
    pages, expected = PAGES[name]

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/health":
            return httpx.Response(200)
        page = pages.get(path)
        if page is None:
            return httpx.Response(404)
        if isinstance(page, str):
            return httpx.Response(200, text=page)
        return httpx.Response(200, content=msgspec.json.encode(page))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        found = await inspect(client, Place.of("http://here"), MODEL, {}, 1.0)

    assert found == expected


@pytest.mark.parametrize(
    ("status", "health", "up"), [(200, 404, True), (401, 404, False), (200, 503, False)]
)
async def test_a_server_without_a_page_of_its_health_is_asked_for_its_models(
    status: int, health: int, up: bool
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(health if request.url.path == "/health" else status, json={})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        assert (await inspect(client, Place.of("http://here"), MODEL, {}, 1.0)).up is up


def _run(*arguments: str) -> Result:
    result = CliRunner().invoke(upstream, ["check", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_command_shows_a_table_or_json_and_fails_with_a_check(toys: dict[str, Toy]) -> None:
    toys["here"], toys["bad"] = Toy(), Toy("stop")

    good = _run("http://here", "--model", MODEL, "--json")
    assert good.exit_code == 0
    found = json.loads(good.stdout)
    assert (found["failed"], found["kind"], found["attested_by"]) == (
        False,
        "vllm",
        "server-metrics",
    )
    assert {result["check"] for result in found["results"]} == set(CHECKS)

    bad = _run("http://bad", "--model", MODEL, "--against", "http://here")
    assert bad.exit_code == 1
    assert "stop_string" in bad.stdout
    assert "failed" in bad.stdout


@pytest.mark.parametrize(
    "arguments", [["here:1"], ["http://away"], ["http://here", "--api-key-env", "NO_SUCH_KEY"]]
)
def test_the_command_says_what_is_wrong_with_its_arguments(
    toys: dict[str, Toy], arguments: list[str]
) -> None:
    toys["here"] = Toy()
    result = CliRunner().invoke(upstream, ["check", *arguments, "--model", MODEL])

    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit | Unavailable)


def test_an_arm_is_probed_when_it_comes_up_and_requests_follow_what_was_seen() -> None:
    with ScriptedUpstream() as server:
        server.max_length = 64

        async def look() -> dict[str, bool]:
            async with httpx.AsyncClient() as client:
                return dict((await probe(client, Place.of(server.url), MODEL, None)).seen)

        # It says the same whatever it is asked, and that shows what it does not heed.
        assert asyncio.run(look()) == {
            "logprobs": False,
            "json_schema": False,
            "logit_bias": False,
            "continuation": True,
        }
