"""The backend for other engines against scripted servers that go wrong in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway import extensions
from gateway.audit.attestation import deviations
from gateway.backends.openai.backend import OpenAIBackend
from gateway.backends.openai.generation import UpstreamGeneration
from gateway.backends.openai.inspection import Finding
from gateway.backends.openai.replica import STANDARD
from gateway.chunk import Chunk
from gateway.errors import (
    ArmUnavailable,
    BackendFailed,
    ConfigError,
    GatewayError,
    InvalidRequest,
    QueueFull,
    Unavailable,
)
from gateway.log import build_log
from gateway.types import ChatRequest, Decision, DraftSetting, Job, Message, Mode, Sampling
from tests.records import decision_record
from tests.upstreams import MODEL, REPLY, ScriptedUpstream


class Fleet(NamedTuple):
    """Two servers that do not speculate, and one that does."""

    first: ScriptedUpstream
    second: ScriptedUpstream
    fast: ScriptedUpstream

    def reset(self) -> None:
        for server in self:
            server.fault, server.healthy, server.delay, server.drafted = None, True, 0.0, 0
            server.kind, server.reply, server.speculates = "vllm", REPLY, server is self.fast
            server.bodies.clear()
            server.headers.clear()
            server.left.clear()


@pytest.fixture(scope="module")
def servers() -> Iterator[Fleet]:
    with ExitStack() as stack:
        made = [ScriptedUpstream() for _ in range(2)] + [ScriptedUpstream(speculates=True)]
        yield Fleet(*(stack.enter_context(server) for server in made))


@pytest.fixture
def fleet(servers: Fleet) -> Fleet:
    servers.reset()
    return servers


PACE = {"first_seconds": 0.3, "idle_seconds": 0.3, "breaker_failures": 2, "check_seconds": 3600.0}


def build(fleet: Fleet, **options: Any) -> OpenAIBackend:
    arms = {
        "standard": {"urls": [fleet.first.url, fleet.second.url]},
        "speculative": {"urls": [fleet.fast.url]},
    }
    given = {"model": MODEL, "arms": arms, "pace": PACE, "probes": False, **options}
    made = extensions.build("backends", "openai", given, name="fleet")
    assert isinstance(made, OpenAIBackend)
    return made


@pytest.fixture
async def backend(fleet: Fleet) -> AsyncIterator[OpenAIBackend]:
    made = build(fleet)
    await made.start(build_log("critical"), CollectorRegistry())
    yield made
    await made.aclose()


def decision(mode: Mode, **changes: Any) -> Decision:
    plain = Decision(
        mode=mode,
        rule="r",
        policy="p",
        policy_hash="h",
        draft=None if mode is Mode.STANDARD else DraftSetting(),
        standard_first=4 if mode is Mode.HYBRID else 0,
    )
    return msgspec.structs.replace(plain, **changes)


async def start(
    backend: OpenAIBackend, mode: Mode = Mode.STANDARD, *, prompt: str | None = None, **knobs: Any
) -> UpstreamGeneration:
    messages = () if prompt else (Message("user", "Say it."),)
    sampling = Sampling(**knobs)
    request = ChatRequest(MODEL, messages, prompt=prompt, sampling=sampling)
    ready = await backend.prepare(request)
    final = msgspec.structs.replace(sampling, seed=7)
    return await backend.generate(Job("req", request, decision(mode), final, ready))


async def read(generation: UpstreamGeneration) -> list[Chunk]:
    return [chunk async for chunk in generation]


async def said(generation: UpstreamGeneration) -> str:
    return "".join(chunk.text for chunk in await read(generation))


def deviating(generation: UpstreamGeneration, mode: Mode) -> tuple[str, ...]:
    request = msgspec.structs.replace(decision_record().request, model=MODEL)
    record = decision_record(request=request, decision=decision(mode), backend="fleet")
    return deviations(record, generation.execution)


def num_asked(server: ScriptedUpstream) -> int:
    return len(server.bodies)


# ---- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Mode))
async def test_each_mode_says_the_same_and_runs_where_it_was_decided(
    backend: OpenAIBackend, fleet: Fleet, mode: Mode
) -> None:
    generation = await start(backend, mode)

    assert await said(generation) == REPLY
    run = generation.execution
    assert (run.mode, run.fallback, run.attested_by) == (mode, None, "server-metrics")
    assert deviating(generation, mode) == ()
    # How the other arm verifies its drafts nobody has seen.
    known = ("coupled", "exact") if mode is Mode.STANDARD else (None, None)
    assert (run.verifier, run.verifier_class) == known
    asked = (num_asked(fleet.first) + num_asked(fleet.second), num_asked(fleet.fast))
    assert asked == {Mode.STANDARD: (1, 0), Mode.SPECULATIVE: (0, 1), Mode.HYBRID: (1, 1)}[mode]
    assert (run.num_draft_tokens, run.num_accepted_tokens) == (
        (0, 0) if mode is Mode.STANDARD else (4, 2)
    )
    assert run.usage.completion_tokens == 10
    assert run.usage.prompt_tokens == 7


async def test_a_hybrid_answer_goes_on_from_its_own_beginning_with_other_noise(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    assert (
        await said(await start(backend, Mode.HYBRID, max_tokens=6))
        == "One two three four five six. "
    )

    (begun,) = fleet.first.bodies or fleet.second.bodies
    (continued,) = fleet.fast.bodies
    assert (begun["max_tokens"], continued["max_tokens"]) == (4, 2)
    # Chat templates trim their turns: the blank is the other arm's to write.
    assert continued["messages"][-1]["content"] == "One two three four"
    assert begun["seed"] != continued["seed"]


async def test_a_continuation_that_is_refused_is_no_fault_of_the_client(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    for server in fleet:
        server.fault = "continuation"
    generation = await start(backend, Mode.HYBRID)

    with pytest.raises(BackendFailed) as caught:
        await read(generation)
    assert "scripted 400" in caught.value.detail


async def test_a_text_completion_is_continued_by_its_prompt(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    assert await said(await start(backend, Mode.HYBRID, prompt="Say:|")) == REPLY

    assert fleet.fast.bodies[0]["prompt"] == "Say:|One two three four "


async def test_a_short_hybrid_answer_needs_no_second_arm(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    generation = await start(backend, Mode.HYBRID, max_tokens=3)

    assert await said(generation) == "One two three "
    assert generation.execution.mode is Mode.HYBRID
    assert num_asked(fleet.fast) == 0


async def test_half_a_character_at_the_seam_is_written_once(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    for server in (fleet.first, fleet.second):
        server.reply = "a b c d\ufffd e f"
    fleet.fast.reply = "a b c d👍 e f"

    assert await said(await start(backend, Mode.HYBRID)) == "a b c d👍 e f"


# ---- faults ---------------------------------------------------------------------------------------

BEFORE = ["500", "503", "429", "garbage", "hang"]


@pytest.mark.parametrize("fault", BEFORE)
async def test_another_replica_of_the_arm_answers_where_one_fails_before_it_has_begun(
    backend: OpenAIBackend, fleet: Fleet, fault: str
) -> None:
    fleet.first.fault = fault

    for _ in range(2):
        generation = await start(backend)
        assert await said(generation) == REPLY
        assert deviating(generation, Mode.STANDARD) == ()
    assert (num_asked(fleet.first), num_asked(fleet.second)) == (1, 2)


@pytest.mark.parametrize("fault", BEFORE)
async def test_a_standard_answer_never_comes_from_the_arm_that_speculates(
    backend: OpenAIBackend, fleet: Fleet, fault: str
) -> None:
    fleet.first.fault = fleet.second.fault = fault

    with pytest.raises(GatewayError) as caught:
        await read(await start(backend))

    assert caught.value.status in (429, 503)
    assert caught.value.retry_after
    assert num_asked(fleet.fast) == 0


@pytest.mark.parametrize("fault", [*BEFORE, "400"])
async def test_a_speculative_answer_comes_from_the_safer_arm_where_the_other_fails(
    backend: OpenAIBackend, fleet: Fleet, fault: str
) -> None:
    fleet.fast.fault = fault

    generation = await start(backend, Mode.SPECULATIVE)

    assert await said(generation) == REPLY
    run = generation.execution
    assert (run.mode, run.fallback) == (
        Mode.STANDARD,
        "unsupported" if fault == "400" else "arm_down",
    )
    assert deviating(generation, Mode.SPECULATIVE) == ()


async def test_a_hybrid_answer_goes_on_where_it_began_when_the_other_arm_fails(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    fleet.fast.fault = "500"

    generation = await start(backend, Mode.HYBRID)

    assert await said(generation) == REPLY
    assert (generation.execution.mode, generation.execution.fallback) == (
        Mode.STANDARD,
        "arm_down",
    )
    assert deviating(generation, Mode.HYBRID) == ()


@pytest.mark.parametrize("fault", ["die_midway", "hang_midway", "error_midway"])
@pytest.mark.parametrize("mode", [Mode.STANDARD, Mode.SPECULATIVE])
async def test_nothing_is_tried_again_once_an_answer_has_begun(
    backend: OpenAIBackend, fleet: Fleet, mode: Mode, fault: str
) -> None:
    for server in fleet:
        server.fault = fault

    generation = await start(backend, mode)
    assert [(await anext(generation)).text for _ in range(2)] == ["One ", "two "]
    with pytest.raises(BackendFailed) as caught:
        await read(generation)

    assert "127.0.0.1" in caught.value.detail
    assert "127.0.0.1" not in caught.value.message
    assert sum(map(num_asked, fleet)) == 1
    assert generation.execution.usage.completion_tokens == 2
    assert deviating(generation, mode) == ()


async def test_a_server_that_thinks_has_begun_and_is_not_given_up(fleet: Fleet) -> None:
    backend = build(fleet, pace={**PACE, "idle_seconds": 5.0})
    fleet.first.fault = fleet.second.fault = "think"

    assert await said(await start(backend)) == REPLY
    assert num_asked(fleet.first) + num_asked(fleet.second) == 1
    await backend.aclose()


async def test_one_request_that_breaks_every_server_is_held_against_the_first_alone(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    fleet.first.fault = fleet.second.fault = "500"

    with pytest.raises(Unavailable):
        await read(await start(backend))
    failures = [replica.breaker._failures for replica in backend._arms[STANDARD].replicas]
    assert sorted(failures) == [0, 1]


async def test_servers_that_take_no_work_are_no_full_queue(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    fleet.first.fault = fleet.second.fault = "503"

    with pytest.raises(ArmUnavailable) as caught:
        await read(await start(backend))
    assert (caught.value.status, caught.value.code) == (503, "arm_unavailable")


async def test_each_attempt_has_an_id_of_its_own(backend: OpenAIBackend, fleet: Fleet) -> None:
    fleet.fast.fault = "500"
    for _ in range(2):
        await read(await start(backend, Mode.HYBRID))

    ids = [headers["x-request-id"] for server in fleet for headers in server.headers]
    assert len(ids) == len(set(ids)) == 6


async def test_a_refused_request_is_the_clients_matter_and_is_not_tried_again(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    fleet.first.fault = fleet.second.fault = "400"

    with pytest.raises(InvalidRequest, match="scripted 400"):
        await read(await start(backend))
    assert num_asked(fleet.first) + num_asked(fleet.second) == 1
    assert all(r.breaker.state == "closed" for r in backend._arms[STANDARD].replicas)


async def test_busy_servers_pass_their_wish_to_wait_on(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    fleet.first.fault = fleet.second.fault = "429"

    with pytest.raises(QueueFull) as caught:
        await read(await start(backend))
    assert caught.value.retry_after == 1


async def test_a_replica_that_keeps_failing_is_left_alone_until_it_is_tried_again(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    replica = backend._arms[STANDARD].replicas[0]
    now = [0.0]
    replica.breaker._clock = lambda: now[0]
    fleet.first.fault = "500"
    for _ in range(6):
        assert await said(await start(backend)) == REPLY
    assert (replica.state, num_asked(fleet.first)) == ("breaker_open", 2)
    await backend._watch.look()
    assert any("breaker open" in warning for warning in backend.status.warnings)

    now[0], fleet.first.fault = 60.0, None
    for _ in range(2):
        assert await said(await start(backend)) == REPLY
    assert replica.state == "up"


async def test_a_server_that_is_away_is_seen_and_seen_again_when_it_is_back(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    fleet.first.healthy = fleet.second.healthy = False
    await backend._watch.look()
    assert not backend.status.ready
    with pytest.raises(Unavailable) as caught:
        await read(await start(backend))
    assert "speculates" in caught.value.message
    assert sum(map(num_asked, fleet)) == 0

    fleet.second.healthy = True
    await backend._watch.look()
    assert backend.status.ready
    assert await said(await start(backend)) == REPLY
    assert num_asked(fleet.first) == 0


async def test_a_port_nobody_listens_at_is_down(fleet: Fleet) -> None:
    backend = build(fleet, arms={"standard": {"urls": ["http://127.0.0.1:9"]}})
    await backend.start(build_log("critical"), CollectorRegistry())

    assert not backend.status.ready
    assert "1 down" in backend.status.detail
    with pytest.raises(Unavailable):
        await read(await start(backend))
    await backend.aclose()


async def test_a_server_hears_when_its_client_has_left(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    fleet.first.delay = fleet.second.delay = 0.05
    generation = await start(backend)
    await anext(generation)

    await generation.aclose()

    left = [asyncio.to_thread(server.left.wait, 5) for server in (fleet.first, fleet.second)]
    done, pending = await asyncio.wait(
        [asyncio.create_task(each) for each in left], return_when=asyncio.FIRST_COMPLETED
    )
    assert any(task.result() for task in done)
    fleet.first.left.set()
    fleet.second.left.set()
    await asyncio.wait(pending) if pending else None
    assert generation.execution.usage.completion_tokens >= 1
    assert backend.status.running == 0


async def test_no_more_run_at_once_than_may(fleet: Fleet) -> None:
    backend = build(fleet, max_running=1)
    fleet.first.delay = fleet.second.delay = 0.05
    running = await start(backend)

    with pytest.raises(QueueFull):
        await start(backend)
    await running.aclose()
    assert await said(await start(backend)) == REPLY
    await backend.aclose()


# ---- attestation ----------------------------------------------------------------------------------


async def test_a_standard_server_whose_counters_move_is_taken_out_until_it_is_another(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    registry = CollectorRegistry()
    await backend.start(build_log("critical"), registry)
    fleet.first.speculates, fleet.first.drafted = True, 12

    await backend._watch.look()

    assert any("attestation_failed" in warning for warning in backend.status.warnings)
    labels = {"backend": "fleet", "arm": "standard"}
    alarms = "draftgate_upstream_attestation_failures_total"
    assert registry.get_sample_value(alarms, labels) == 1
    for _ in range(3):
        assert await said(await start(backend)) == REPLY
    assert num_asked(fleet.first) == 0
    fleet.first.speculates, fleet.first.drafted = False, 0
    await backend._watch.look()
    assert backend._arms[STANDARD].replicas[0].usable


async def test_drafts_for_a_standard_request_fail_its_attestation_and_take_the_server_out(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    fleet.first.speculates = fleet.second.speculates = True

    generation = await start(backend)

    assert await said(generation) == REPLY
    assert generation.execution.mode is Mode.SPECULATIVE
    assert "draft tokens, though none was to be proposed" in deviating(generation, Mode.STANDARD)
    states = sorted(replica.state for replica in backend._arms[STANDARD].replicas)
    assert states == ["attestation_failed", "up"]


async def test_a_server_found_out_while_it_answers_fails_the_answers_attestation(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    fleet.first.delay = fleet.second.delay = 0.02
    generation = await start(backend)
    await anext(generation)
    for server in (fleet.first, fleet.second):
        server.speculates, server.drafted = True, 3
    await backend._watch.look()
    for server in (fleet.first, fleet.second):
        server.speculates = False

    await read(generation)

    assert deviating(generation, Mode.STANDARD)
    assert not backend.status.ready


@pytest.mark.parametrize("caught_by", ["counters", "answer"])
async def test_a_page_that_is_missing_clears_no_server_that_was_seen_to_speculate(
    backend: OpenAIBackend, fleet: Fleet, caught_by: str
) -> None:
    replica = backend._arms[STANDARD].replicas[0]
    if caught_by == "answer":
        replica.catch()
    else:
        fleet.first.speculates, fleet.first.drafted = True, 3
        await backend._watch.look()

    fleet.first.kind = "unknown"
    await backend._watch.look()
    assert replica.state == "attestation_failed"
    fleet.first.healthy = False
    await backend._watch.look()
    assert replica.state == "attestation_failed"

    fleet.first.kind, fleet.first.healthy, fleet.first.speculates = "vllm", True, False
    await backend._watch.look()
    assert replica.usable


async def test_a_look_from_before_an_answer_with_drafts_does_not_clear_its_server(
    backend: OpenAIBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = backend._arms[STANDARD].replicas[0]

    async def looked_at(*_: Any) -> Finding:
        replica.catch()
        return Finding(up=True, kind="vllm", drafted=0.0, has_metrics=True)

    monkeypatch.setattr("gateway.backends.openai.replica.inspect", looked_at)
    await replica.look(backend._client)

    assert replica.broke_its_promise


def test_only_metrics_that_were_seen_attest_for_a_server_without_counters() -> None:
    assert not Finding(up=True, kind="vllm").attests
    assert Finding(up=True, kind="vllm", has_metrics=True).attests
    assert not Finding(up=True, kind="llama.cpp", has_metrics=True).attests


async def test_a_server_that_shows_nothing_is_attested_by_its_configuration_alone(
    backend: OpenAIBackend, fleet: Fleet
) -> None:
    fleet.first.kind = fleet.second.kind = "unknown"
    await backend._watch.look()
    generation = await start(backend)
    await read(generation)

    assert generation.execution.attested_by == "config-only"
    assert deviating(generation, Mode.STANDARD) == ()


async def test_no_server_is_used_unseen(fleet: Fleet) -> None:
    backend = build(fleet)
    fleet.first.speculates, fleet.first.drafted = True, 1
    fleet.second.speculates, fleet.second.drafted = True, 1

    with pytest.raises(Unavailable):
        await read(await start(backend))
    assert sum(map(num_asked, fleet)) == 0
    await backend.aclose()


async def test_an_arm_that_should_speculate_and_does_not_is_a_warning(fleet: Fleet) -> None:
    fleet.fast.speculates = False
    backend = build(fleet)
    await backend.start(build_log("critical"), CollectorRegistry())

    assert backend.status.ready
    assert any("does not speculate" in warning for warning in backend.status.warnings)
    await backend.aclose()


# ---- configuration --------------------------------------------------------------------------------


async def test_the_key_comes_from_the_environment_and_goes_to_its_arm(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {"standard": {"urls": [fleet.first.url], "api_key_env": "TWIN_KEY"}}
    monkeypatch.delenv("TWIN_KEY", raising=False)
    with pytest.raises(ConfigError, match="TWIN_KEY"):
        build(fleet, arms=arms)

    monkeypatch.setenv("TWIN_KEY", "secret")
    backend = build(fleet, arms=arms)
    await read(await start(backend))

    assert fleet.first.headers[0]["authorization"] == "Bearer secret"
    await backend.aclose()


def test_a_lossy_verifier_is_refused(fleet: Fleet) -> None:
    lossy = decision(Mode.SPECULATIVE, verifier="typical", max_distortion=0.1)

    with pytest.raises(ConfigError, match="typical"):
        build(fleet).check(lossy)


async def test_the_context_is_the_shortest_that_its_servers_tell_of(
    backend: OpenAIBackend,
) -> None:
    assert backend.models[0].max_length == 64
