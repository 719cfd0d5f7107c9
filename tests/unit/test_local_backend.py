"""The local backend: decisions become rows, rows become chunks, and the account is the engine's."""

import asyncio
import re

import msgspec
import pytest
import torch

from gateway import extensions
from gateway.audit.attestation import attest
from gateway.backends.local import LocalBackend
from gateway.errors import BackendFailed, ConfigError, InvalidRequest, QueueFull
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


@pytest.fixture
async def backend(tiny_model, tmp_path):
    made = LocalBackend(
        model=str(tiny_model),
        device="cpu",
        dtype="float32",
        num_slots=2,
        max_queue=1,
        cache=str(tmp_path),
    )
    yield made
    await made.aclose()


def decide(mode, **extra):
    draft = None if mode is Mode.STANDARD else DraftSetting(num_speculative_tokens=4)
    return Decision(mode=mode, rule="r", policy="p", policy_hash="h", draft=draft, **extra)


async def run(backend, decision, *, n=1, text="abcabcabcabcabc", caller="", **knobs):
    request = ChatRequest(backend.models[0].id, (Message("user", text),), n=n)
    sampling = Sampling(**{"max_tokens": 24, "seed": 3, "temperature": 0.0, **knobs})
    prompt = await backend.prepare(request)
    job = Job("req", request, decision, sampling, prompt, caller_id=caller, domain="code")
    generation = await backend.generate(job)
    return [chunk async for chunk in generation], generation


def record_of(backend, decision):
    """The record of a single answer of `run` under ``decision``."""
    facts = decision_record().request
    return decision_record(
        decision=decision,
        request=msgspec.structs.replace(facts, model=backend.models[0].id),
        sampling=Sampling(max_tokens=24),
    )


@pytest.mark.parametrize(
    "decision",
    [
        decide(Mode.STANDARD),
        decide(Mode.SPECULATIVE),
        decide(Mode.HYBRID, standard_first=5),
        decide(Mode.HYBRID, content_tokens=Mode.STANDARD),
        decide(Mode.HYBRID, max_entropy=1.0),
    ],
)
async def test_what_runs_is_what_was_decided_and_the_tokens_are_the_same(backend, decision):
    _, expected = await run(backend, decide(Mode.STANDARD))
    chunks, generation = await run(backend, decision)
    ran = generation.execution

    assert generation.outputs[0] == expected.outputs[0]
    assert ran.mode is decision.mode
    assert attest(record_of(backend, decision), ran) == "ok"
    assert ran.usage.completion_tokens == len(generation.outputs[0])
    assert chunks[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert chunks[-1].usage.completion_tokens == ran.usage.completion_tokens
    assert sum(ran.accept_counts) == ran.num_drafts
    assert sum(k * count for k, count in enumerate(ran.accept_counts)) == ran.num_accepted_tokens
    if decision.mode is Mode.STANDARD:
        assert ran.num_drafts == 0


async def test_a_prompt_is_computed_once_for_each_caller(backend):
    long = "a question that is longer than what is worth keeping track of"
    runs = [
        await run(backend, decide(Mode.STANDARD), text=long, caller=caller, n=n)
        for caller, n in (("ann", 1), ("ann", 2), ("bob", 2))
    ]
    cached = [generation.execution.usage.cached_tokens for _, generation in runs]
    size = runs[0][1].execution.usage.prompt_tokens

    assert cached == [0, size - 1, 0]
    assert [chunk.usage.cached_tokens for chunk in runs[1][0] if chunk.usage] == [size - 1] * 2
    assert sorted(chunk.usage.cached_tokens for chunk in runs[2][0] if chunk.usage) == [0, size - 1]


async def test_the_account_says_why_drafts_were_as_long_as_they_were(backend):
    _, generation = await run(backend, decide(Mode.SPECULATIVE), n=2)
    ran = generation.execution

    # The first choice's first token comes with its prompt; the second choice copies that.
    assert sum(ran.why_k.values()) == ran.num_steps - 1
    _, generation = await run(backend, decide(Mode.STANDARD))
    assert generation.execution.why_k == {}


@pytest.mark.parametrize("cost_model", ["auto", "off", "frozen", False])
async def test_the_cost_model_can_be_left_out_or_frozen(
    tiny_model, tmp_path, cost_model, monkeypatch
):
    # Kept however busy the machine is that runs this.
    monkeypatch.setattr("decoders.measurements.MAX_SPREAD", float("inf"))
    made = extensions.build(
        "backends",
        "local",
        {"model": str(tiny_model), "device": "cpu", "num_slots": 1, "cost_model": cost_model}
        | {"cache": str(tmp_path)},
    )
    try:
        _, generation = await run(made, decide(Mode.SPECULATIVE))
        reasons = set(generation.execution.why_k)
    finally:
        await made.aclose()

    profiles = list((tmp_path / "profiles").glob("*.json"))
    assert len(profiles) == (cost_model in ("auto", "frozen"))
    if not profiles:
        assert reasons <= {"limit", "no_match", "end"}


def test_an_unknown_cost_model_is_a_configuration_error(tiny_model):
    with pytest.raises(ConfigError, match="cost_model"):
        extensions.build("backends", "local", {"model": str(tiny_model), "cost_model": "fast"})


@pytest.mark.parametrize("verifier", ["typical", "conservative"])
async def test_a_lossy_verifier_runs_within_its_budget_and_says_so(backend, verifier):
    decision = decide(Mode.SPECULATIVE, verifier=verifier, max_distortion=0.5)
    _, generation = await run(backend, decision, temperature=1.0)
    ran = generation.execution

    assert (ran.verifier, ran.verifier_class) == (verifier, "lossy")
    assert 0 <= ran.distortion <= 0.5
    assert attest(record_of(backend, decision), ran) == "ok"


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
    assert attest(record_of(backend, decision), ran) == "ok"


@pytest.mark.parametrize(
    ("verifier", "budget", "message"),
    [("typical", None, "'typical' is lossy"), ("coupled", 0.5, "'coupled' is exact")],
)
async def test_a_verifier_and_a_budget_that_do_not_fit_run_nothing(
    backend, verifier, budget, message
):
    decision = decide(Mode.SPECULATIVE, verifier=verifier, max_distortion=budget)

    with pytest.raises(BackendFailed) as caught:
        await run(backend, decision)

    assert message in caught.value.detail

    assert (backend.status.running, backend.status.queued) == (0, 0)


async def test_extensions_are_looked_up_once_and_not_for_each_request(backend, monkeypatch):
    looked_up, first = [], ()
    load = extensions.load
    monkeypatch.setattr(extensions, "load", lambda *name: looked_up.append(name) or load(*name))

    for _ in range(3):
        await run(backend, decide(Mode.SPECULATIVE), max_tokens=4)
        first = first or tuple(looked_up)

    assert {("draft_sources", "suffix"), ("verifiers", "coupled")} == set(first)
    assert tuple(looked_up) == first


async def test_choices_are_counted_together_and_told_apart(backend):
    chunks, generation = await run(backend, decide(Mode.SPECULATIVE), n=2, temperature=1.5)

    assert {chunk.index for chunk in chunks} == {0, 1}
    assert generation.outputs[0] != generation.outputs[1]
    total = sum(len(generation.outputs[choice]) for choice in (0, 1))
    assert generation.execution.usage.completion_tokens == total


async def test_more_choices_than_there_is_room_for_are_refused_whole(backend):
    with pytest.raises(InvalidRequest, match="room for 3 answers") as never:
        await run(backend, decide(Mode.STANDARD), n=4)
    request = ChatRequest("m", prompt="go", n=2)
    job = Job("r", request, decide(Mode.STANDARD), Sampling(), await backend.prepare(request))
    running = await backend.generate(job)
    with pytest.raises(QueueFull) as caught:
        await run(backend, decide(Mode.STANDARD), n=3)
    await running.aclose()

    assert never.value.param == "n"
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


async def test_it_says_what_runs(backend):
    assert "dtype float32; threads " in backend.status.detail


async def test_a_dtype_that_was_chosen_by_measuring_is_said_with_its_times(tiny_model, tmp_path):
    backend = LocalBackend(
        model=str(tiny_model),
        device="cpu",
        dtype="fastest",
        threads=torch.get_num_threads(),
        num_slots=2,
        cache=str(tmp_path),
        cost_model="off",
    )
    await backend.aclose()

    assert re.search(
        r"dtype [\w-]+ \(float32 .* ms, bfloat16-weights .* ms, bfloat16 .* ms\)", backend._runs
    )


def test_a_number_of_threads_that_cannot_be_is_a_configuration_error(tiny_model):
    with pytest.raises(ConfigError, match="threads is 0"):
        LocalBackend(model=str(tiny_model), threads=0)


async def test_a_backend_whose_engine_has_died_is_not_ready(backend):
    assert backend.status.ready

    backend._engine.stop()

    assert not backend.status.ready
    assert "stopped" in backend.status.detail


def test_a_missing_model_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="no model at"):
        LocalBackend(model=str(tmp_path / "nothing"))


def test_no_slots_is_a_configuration_error(tiny_model):
    with pytest.raises(ConfigError, match="num_slots"):
        LocalBackend(model=str(tiny_model), num_slots=0)
