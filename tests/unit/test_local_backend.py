"""The local backend: decisions become rows, rows become chunks, and the account is the engine's."""

import asyncio

import pytest

from gateway.audit.record import attest
from gateway.backends.local import LocalBackend
from gateway.errors import BackendFailed, ConfigError, InvalidRequest, QueueFull
from gateway.types import (
    ChatRequest,
    Decision,
    Draft,
    FinishReason,
    Job,
    Message,
    Mode,
    Sampling,
)


@pytest.fixture
async def backend(tiny_model):
    made = LocalBackend(
        model=str(tiny_model), device="cpu", dtype="float32", num_slots=2, max_queue=1
    )
    yield made
    await made.aclose()


def decide(mode, **extra):
    draft = None if mode is Mode.STANDARD else Draft(num_speculative_tokens=4)
    return Decision(mode=mode, rule="r", policy="p", policy_hash="h", draft=draft, **extra)


async def run(backend, decision, *, n=1, text="abcabcabcabcabc", **knobs):
    request = ChatRequest(backend.models[0].id, (Message("user", text),), n=n)
    sampling = Sampling(**{"max_tokens": 24, "seed": 3, "temperature": 0.0, **knobs})
    prompt = await backend.prepare(request)
    generation = await backend.generate(Job("req", request, decision, sampling, prompt))
    return [chunk async for chunk in generation], generation


@pytest.mark.parametrize(
    "decision",
    [
        decide(Mode.STANDARD),
        decide(Mode.SPECULATIVE),
        decide(Mode.HYBRID, standard_first=5),
        decide(Mode.HYBRID, content_tokens=Mode.STANDARD),
    ],
)
async def test_what_runs_is_what_was_decided_and_the_tokens_are_the_same(backend, decision):
    _, expected = await run(backend, decide(Mode.STANDARD))
    chunks, generation = await run(backend, decision)
    ran = generation.execution

    assert generation.output_ids(0) == expected.output_ids(0)
    assert ran.mode is decision.mode
    assert attest(decision, ran) == "ok"
    assert ran.usage.completion_tokens == len(generation.output_ids(0))
    assert chunks[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert chunks[-1].usage.completion_tokens == ran.usage.completion_tokens
    assert sum(ran.accept_counts) == ran.num_drafts
    assert sum(k * count for k, count in enumerate(ran.accept_counts)) == ran.num_accepted_tokens
    if decision.mode is Mode.STANDARD:
        assert ran.num_drafts == 0


@pytest.mark.parametrize("verifier", ["typical", "conservative"])
async def test_a_lossy_verifier_runs_within_its_budget_and_says_so(backend, verifier):
    decision = decide(Mode.SPECULATIVE, verifier=verifier, max_distortion=0.5)
    _, generation = await run(backend, decision, n=2, temperature=1.0)
    ran = generation.execution

    assert (ran.verifier, ran.verifier_class) == (verifier, "lossy")
    assert 0 <= ran.distortion <= 0.5
    assert attest(decision, ran) == "ok"


async def test_the_distortion_is_that_of_the_choice_that_spent_most(backend):
    decision = decide(Mode.SPECULATIVE, verifier="typical", max_distortion=1.0)
    _, generation = await run(backend, decision, n=2, temperature=0.7, max_tokens=60)
    spent = [ticket.stats.distortion for ticket in generation.tickets]

    assert generation.execution.distortion == max(spent)


async def test_rejection_is_exact_and_says_so(backend):
    decision = decide(Mode.SPECULATIVE, verifier="rejection")
    _, generation = await run(backend, decision, temperature=1.0)
    ran = generation.execution

    assert (ran.verifier, ran.verifier_class, ran.distortion) == ("rejection", "exact", 0.0)
    assert attest(decision, ran) == "ok"


@pytest.mark.parametrize(
    ("verifier", "budget", "message"),
    [("typical", None, "'typical' is lossy"), ("coupled", 0.5, "'coupled' is exact")],
)
async def test_a_verifier_and_a_budget_that_do_not_fit_run_nothing(
    backend, verifier, budget, message
):
    decision = decide(Mode.SPECULATIVE, verifier=verifier, max_distortion=budget)

    with pytest.raises(BackendFailed, match=message):
        await run(backend, decision)

    assert (backend.status.running, backend.status.queued) == (0, 0)


async def test_choices_are_counted_together_and_told_apart(backend):
    chunks, generation = await run(backend, decide(Mode.SPECULATIVE), n=2, temperature=1.5)

    assert {chunk.index for chunk in chunks} == {0, 1}
    assert generation.output_ids(0) != generation.output_ids(1)
    total = sum(len(generation.output_ids(choice)) for choice in (0, 1))
    assert generation.execution.usage.completion_tokens == total


async def test_more_choices_than_there_is_room_for_are_refused_whole(backend):
    with pytest.raises(QueueFull) as caught:
        await run(backend, decide(Mode.STANDARD), n=4)

    assert caught.value.retry_after >= 1
    assert (backend.status.running, backend.status.queued) == (0, 0)


async def test_logprobs_come_with_the_bytes_of_each_token(backend):
    chunks, _ = await run(backend, decide(Mode.STANDARD), logprobs=2)
    tokens = [token for chunk in chunks for token in chunk.logprobs or ()]

    spelled = b"".join(token.token_bytes for token in tokens).decode(errors="replace")
    assert spelled == "".join(chunk.text for chunk in chunks)
    assert all(len(token.top) == 2 for token in tokens)


@pytest.mark.parametrize(
    ("text", "knobs", "param"),
    [
        ("hi", {"logit_bias": {999: 1.0}}, "logit_bias"),
        ("hi", {"temperature": -1.0}, "temperature"),
    ],
)
async def test_what_the_engine_refuses_names_its_parameter(backend, text, knobs, param):
    request = ChatRequest("m", (Message("user", text),), sampling=Sampling(**knobs))

    with pytest.raises(InvalidRequest) as caught:
        await backend.prepare(request)

    assert caught.value.param == param


async def test_an_empty_prompt_is_refused(backend):
    with pytest.raises(InvalidRequest, match="empty"):
        await backend.prepare(ChatRequest("m", prompt=()))


async def test_a_cancelled_generation_lets_the_next_one_in(backend):
    request = ChatRequest("m", (Message("user", "go"),))
    prompt = await backend.prepare(request)
    jobs = [Job("r", request, decide(Mode.STANDARD), Sampling(seed=i), prompt) for i in range(3)]
    running = [await backend.generate(job) for job in jobs]
    with pytest.raises(QueueFull):
        await backend.generate(jobs[0])

    await running[0].aclose()
    late = await backend.generate(jobs[0])
    await asyncio.gather(*(generation.aclose() for generation in [*running, late]))

    assert backend.status.running == 0


def test_a_missing_model_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="no model at"):
        LocalBackend(model=str(tmp_path / "nothing"))


def test_no_slots_is_a_configuration_error(tiny_model):
    with pytest.raises(ConfigError, match="num_slots"):
        LocalBackend(model=str(tiny_model), num_slots=0)
