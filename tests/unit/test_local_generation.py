"""The account of a local generation, and what becomes of the engine's own words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.local import LocalBackend
from gateway.errors import BackendFailed, ConfigError
from gateway.tally import Tally
from gateway.types import ChatRequest, Decision, DraftSetting, Job, Message, Mode, Sampling

DECISION = Decision(
    mode=Mode.SPECULATIVE, rule="r", policy="p", policy_hash="h", draft=DraftSetting("suffix", 3)
)


@pytest.fixture
async def backend(tiny_model: Path) -> AsyncIterator[LocalBackend]:
    made = LocalBackend(
        name="gpu-0",
        model=str(tiny_model),
        served_name="small",
        device="cpu",
        dtype="float32",
        cost_model="off",
    )
    yield made
    await made.aclose()


async def start(
    backend: LocalBackend, *, n: int = 1, temperature: float = 0.0, seed: int | None = None
) -> Any:
    """``seed`` is the caller's own."""
    request = ChatRequest(
        "small", (Message("user", "abcabcabcabcabc"),), n=n, sampling=Sampling(seed=seed)
    )
    prompt = await backend.prepare(request)
    sampling = Sampling(max_tokens=24, seed=3, temperature=temperature)
    return await backend.generate(Job("req", request, DECISION, sampling, prompt))


async def test_the_steps_of_an_answer_add_up_to_its_account(backend: LocalBackend) -> None:
    generation = await start(backend)
    steps = [step async for chunk in generation for step in chunk.steps]
    await generation.aclose()

    run = generation.execution
    assert sum(step.num_tokens for step in steps) == run.usage.completion_tokens
    assert sum(step.num_draft_tokens for step in steps) == run.num_draft_tokens > 0
    assert sum(step.num_accepted_tokens for step in steps) == run.num_accepted_tokens
    assert len(steps) == run.num_steps


async def test_the_account_bears_the_configured_name_and_the_longest_draft(
    backend: LocalBackend,
) -> None:
    generation = await start(backend, n=2)
    assert [chunk async for chunk in generation]
    await generation.aclose()

    run = generation.execution
    assert (run.backend, run.model) == ("gpu-0", "small")
    assert [model.id for model in backend.models] == ["small"]
    assert run.num_draft_tokens > 0
    assert 1 <= run.longest_draft <= 3
    assert run.longest_draft == max(ticket.stats.longest_draft for ticket in generation.tickets)


async def test_the_engines_own_words_are_for_the_log_and_not_for_the_client(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(rows: Any) -> Any:
        raise MemoryError("device 3 of host gpu-17 has 2 MiB left")

    monkeypatch.setattr(backend._loaded.model, "forward", fail)
    generation = await start(backend)

    with pytest.raises(BackendFailed) as caught:
        [chunk async for chunk in generation]
    await generation.aclose()

    assert "gpu-17" not in caught.value.message
    assert caught.value.detail == (
        "decoding failed: MemoryError: device 3 of host gpu-17 has 2 MiB left"
    )


async def test_decoding_again_gives_the_same_tokens_with_a_margin_each(
    backend: LocalBackend,
) -> None:
    generation = await start(backend, n=2)
    assert [chunk async for chunk in generation]
    await generation.aclose()
    job = generation._job

    run = await backend.decode_again(job, patient=True)

    assert run is not None
    assert tuple(answer.token_ids for answer in run.answers) == generation.outputs
    assert all(len(answer.margins) == len(answer.token_ids) for answer in run.answers)
    assert len(run.texts) == 2


async def test_a_patient_run_is_given_up_whole_for_a_request(backend: LocalBackend) -> None:
    generation = await start(backend)
    assert [chunk async for chunk in generation]
    request = ChatRequest("small", (Message("user", "a long one"),), n=12)
    prompt = await backend.prepare(request)
    sampling = Sampling(max_tokens=4000, seed=3, ignore_eos=True)
    long = Job("req", request, DECISION, sampling, prompt)
    again = asyncio.create_task(backend.decode_again(long, patient=True))
    while not backend.status.running:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)

    generation = await start(backend)
    text = "".join([chunk.text async for chunk in generation])

    assert text
    assert await asyncio.wait_for(again, 10) is None
    assert backend.status.running == 0


async def test_a_run_that_the_end_of_the_backend_cuts_off_is_no_run(backend: LocalBackend) -> None:
    generation = await start(backend)
    again = asyncio.create_task(backend.decode_again(generation._job, patient=True))
    await asyncio.sleep(0)

    await backend.aclose()

    run = await asyncio.wait_for(again, 10)
    assert run is None or run.answers[0].token_ids == generation.outputs[0]


@pytest.mark.parametrize("seed", [None, 3])
async def test_every_token_is_measured_and_a_callers_seed_is_no_evidence(
    backend: LocalBackend, seed: int | None
) -> None:
    generation = await start(backend, n=2, temperature=1.0, seed=seed)
    assert generation.execution.tally is None
    assert [chunk async for chunk in generation]
    await generation.aclose()

    run = generation.execution
    assert run.tally is not None
    assert (run.tally.num_tokens, run.tally.num_impossible) == (run.usage.completion_tokens, 0)
    if seed is None:
        assert run.tally.accepted.observed == run.num_accepted_tokens
        assert run.tally.surprisal.variance > 0
        assert all(run.tally.log_factors.values())
    else:
        assert run.tally == Tally(num_tokens=run.tally.num_tokens)


@pytest.mark.parametrize("option", ["off", False])
async def test_evidence_can_be_turned_off(tiny_model: Path, option: Any) -> None:
    backend = LocalBackend(model=str(tiny_model), device="cpu", dtype="float32", evidence=option)
    generation = await start(backend)
    assert [chunk async for chunk in generation]
    await generation.aclose()
    await backend.aclose()

    assert generation.execution.tally is None


def test_an_option_that_is_neither_on_nor_off_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="evidence is 'maybe'"):
        LocalBackend(model=str(tiny_model), device="cpu", dtype="float32", evidence="maybe")  # type: ignore[arg-type]
