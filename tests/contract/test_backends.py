"""What every backend must do. A backend joins by a line in `BACKENDS`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway import extensions
from gateway.audit.attestation import deviations
from gateway.backends.base import Backend, Generation, Starter
from gateway.backends.scripted import ScriptedBackend
from gateway.chunk import Chunk
from gateway.errors import ConfigError, ContextLengthExceeded, QueueFull, Unavailable
from gateway.execution import Execution
from gateway.log import build_log
from gateway.types import (
    ChatRequest,
    Decision,
    DraftSetting,
    FinishReason,
    Job,
    Message,
    Mode,
    Sampling,
)
from tests.records import decision_record
from tests.upstreams import MODEL, ScriptedUpstream

NAME = "here"
"""What the backend is called in the configuration."""
BACKENDS: dict[str, Callable[[Path, Path], Backend]] = {
    "scripted": lambda model, cache: extensions.build(
        "backends",
        "scripted",
        {"replies": ["One two three four five six. Seven eight nine ten."], "max_length": 64},
        name=NAME,
    ),
    "local": lambda model, cache: extensions.build(
        "backends",
        "local",
        {"model": str(model), "device": "cpu", "max_length": 64, "cache": str(cache)},
        name=NAME,
    ),
}
DECISIONS = {
    Mode.STANDARD: Decision(mode=Mode.STANDARD, rule="r", policy="p", policy_hash="h"),
    Mode.SPECULATIVE: Decision(
        mode=Mode.SPECULATIVE, rule="r", policy="p", policy_hash="h", draft=DraftSetting()
    ),
    Mode.HYBRID: Decision(
        mode=Mode.HYBRID,
        rule="r",
        policy="p",
        policy_hash="h",
        draft=DraftSetting(),
        standard_first=4,
    ),
}


@pytest.fixture(scope="module")
def twins() -> Iterator[Mapping[str, Any]]:
    """A server that does not speculate, and one that does, as the arms of a backend."""
    with ScriptedUpstream() as standard, ScriptedUpstream(speculates=True) as speculative:
        yield {"standard": {"urls": [standard.url]}, "speculative": {"urls": [speculative.url]}}


@pytest.fixture(params=[*BACKENDS, "openai"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    if request.param == "openai":
        options = {"model": MODEL, "arms": request.getfixturevalue("twins"), "probes": False}
        made = extensions.build("backends", "openai", options, name=NAME)
    else:
        made = BACKENDS[request.param](request.getfixturevalue("tiny_model"), tmp_path)
    if isinstance(made, Starter):
        await made.start(build_log("critical"), CollectorRegistry())
    yield made
    await made.aclose()


async def start(
    backend: Backend, *, mode: Mode = Mode.STANDARD, text: str = "Say it.", n: int = 1, **knobs: Any
) -> Generation:
    request = ChatRequest(backend.models[0].id, (Message("user", text),), n=n)
    prompt = await backend.prepare(request)
    sampling = Sampling(**{"max_tokens": 8, "seed": 7, **knobs})
    return await backend.generate(Job("req", request, DECISIONS[mode], sampling, prompt))


async def read(generation: Generation) -> list[Chunk]:
    chunks = []
    while (chunk := await anext(generation, None)) is not None:
        chunks.append(chunk)
    return chunks


def text_of(chunks: list[Chunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.index == index)


async def test_a_backend_serves_at_least_one_model_and_says_that_it_is_ready(
    backend: Backend,
) -> None:
    assert backend.models
    assert all(model.id and model.max_length > 0 for model in backend.models)
    assert backend.status.ready


@pytest.mark.parametrize("mode", list(Mode))
async def test_every_choice_ends_with_exactly_one_finish_reason(
    backend: Backend, mode: Mode
) -> None:
    chunks = await read(await start(backend, mode=mode, n=3))

    ends = Counter(chunk.index for chunk in chunks if chunk.finish_reason is not None)
    assert ends == {0: 1, 1: 1, 2: 1}
    for index in range(3):
        last = [chunk for chunk in chunks if chunk.index == index][-1]
        assert last.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert last.usage is not None
        assert 0 < last.usage.completion_tokens <= 8


@pytest.mark.parametrize("mode", list(Mode))
async def test_the_execution_says_what_ran(backend: Backend, mode: Mode) -> None:
    generation = await start(backend, mode=mode)

    chunks = await read(generation)
    await generation.aclose()
    run = generation.execution

    request = msgspec.structs.replace(decision_record().request, model=backend.models[0].id)
    record = decision_record(request=request, decision=DECISIONS[mode], backend=NAME)
    assert deviations(record, run) == ()
    assert run.num_steps > 0
    assert run.usage.prompt_tokens > 0
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == run.usage.completion_tokens
    assert 0 <= run.num_accepted_tokens <= run.num_draft_tokens
    if mode is Mode.STANDARD:
        assert 0 == run.num_drafts == run.num_draft_tokens


async def test_the_same_seed_gives_the_same_answer_in_every_mode(backend: Backend) -> None:
    texts = {text_of(await read(await start(backend, mode=mode))) for mode in Mode}

    assert len(texts) == 1


async def test_max_tokens_is_exact(backend: Backend) -> None:
    chunks = await read(await start(backend, max_tokens=3))

    assert chunks[-1].finish_reason == FinishReason.LENGTH
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


async def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(backend: Backend) -> None:
    whole = text_of(await read(await start(backend)))
    middle = len(whole) // 2
    stop = whole[middle : middle + 2]

    chunks = await read(await start(backend, stop=(stop,)))

    assert whole[: whole.index(stop)] == text_of(chunks)
    assert chunks[-1].finish_reason == FinishReason.STOP


async def test_logprobs_come_with_the_tokens_when_asked_for(backend: Backend) -> None:
    plain = await read(await start(backend))
    asked = await read(await start(backend, logprobs=1))

    assert all(chunk.logprobs is None for chunk in plain)
    tokens = [token for chunk in asked for token in chunk.logprobs or ()]
    assert tokens
    assert all(token.logprob <= 0 and len(token.top) >= 1 for token in tokens)


async def test_closing_a_generation_settles_its_counts_and_frees_its_place(
    backend: Backend,
) -> None:
    generation = await start(backend)
    await anext(generation)

    await generation.aclose()
    settled = generation.execution
    await generation.aclose()

    assert settled == generation.execution
    assert settled.usage.completion_tokens <= 8
    assert await anext(generation, None) is None
    assert (backend.status.running, backend.status.queued) == (0, 0)


async def test_closing_before_the_first_chunk_is_allowed(backend: Backend) -> None:
    generation = await start(backend)

    await generation.aclose()

    assert isinstance(generation.execution, Execution)
    assert await anext(generation, None) is None


async def test_a_waiting_reader_ends_when_its_generation_is_closed(backend: Backend) -> None:
    generation = await start(backend)
    await anext(generation)
    reader = asyncio.create_task(read(generation))

    await generation.aclose()

    await asyncio.wait_for(reader, 5)


async def test_many_at_once_all_finish(backend: Backend) -> None:
    async def one() -> str:
        return text_of(await read(await start(backend)))

    texts = await asyncio.gather(*(one() for _ in range(16)))

    assert len(set(texts)) == 1
    assert (backend.status.running, backend.status.queued) == (0, 0)


async def test_a_prompt_longer_than_the_context_is_refused(backend: Backend) -> None:
    longest = backend.models[0].max_length
    request = ChatRequest(backend.models[0].id, (Message("user", "word " * (longest + 1)),))

    with pytest.raises(ContextLengthExceeded) as caught:
        await backend.prepare(request)

    assert caught.value.param == "messages"


async def test_a_closed_backend_refuses_and_may_be_closed_again(backend: Backend) -> None:
    await backend.aclose()
    await backend.aclose()

    assert not backend.status.ready
    with pytest.raises(Unavailable):
        await start(backend)


async def test_closing_the_backend_ends_what_runs(backend: Backend) -> None:
    generation = await start(backend)
    await anext(generation)

    await backend.aclose()

    await asyncio.wait_for(read(generation), 5)
    assert backend.status.running == 0


async def test_the_script_refuses_more_than_its_queue_holds() -> None:
    backend = ScriptedBackend(max_running=1, max_queued=1)
    running, waiting = await start(backend), await start(backend)
    await anext(running)

    with pytest.raises(QueueFull):
        await start(backend)
    assert (backend.status.running, backend.status.queued) == (1, 1)

    await running.aclose()
    assert await read(waiting)
    assert await read(await start(backend))


async def test_a_queued_generation_that_is_cancelled_takes_no_place() -> None:
    backend = ScriptedBackend(max_running=1, max_queued=2)
    running, waiting = await start(backend), await start(backend)
    await anext(running)
    reader = asyncio.create_task(read(waiting))
    await asyncio.sleep(0)

    reader.cancel()
    await asyncio.wait([reader])
    await waiting.aclose()
    await running.aclose()

    assert (backend.status.running, backend.status.queued) == (0, 0)
    assert await asyncio.wait_for(read(await start(backend)), 5)


async def test_the_script_picks_a_reply_by_seed_or_by_the_last_message() -> None:
    by_seed = ScriptedBackend(replies=["zero", "one"])
    by_text = ScriptedBackend(replies={"CODE": "x = 1", "": "other"})

    assert [
        text_of(chunks, index)
        for chunks in [await read(await start(by_seed, seed=3, n=2))]
        for index in range(2)
    ] == ["one", "zero"]
    assert text_of(await read(await start(by_text, text="write code"))) == "x = 1"
    assert text_of(await read(await start(by_text, text="hello"))) == "other"


@pytest.mark.parametrize(
    "options", [{"models": []}, {"replies": []}, {"execution": {"moed": "standard"}}]
)
def test_a_script_that_says_nothing_useful_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ScriptedBackend(**options)
