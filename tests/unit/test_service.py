from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from gateway.audit.record import DecisionRecord, OutcomeRecord
from gateway.backends.base import Backend
from gateway.backends.scripted import ScriptedBackend
from gateway.chunk import Chunk
from gateway.classification.base import Classifier, Reading
from gateway.errors import (
    AuditUnavailable,
    BackendFailed,
    ContextLengthExceeded,
    GatewayError,
    ModelNotFound,
    PolicyDenied,
    QueueFull,
    Unavailable,
)
from gateway.reply import Receipt, Reply
from gateway.routing.active import ActivePolicy
from gateway.routing.policy import parse_policy
from gateway.service import Gateway
from gateway.telemetry import Telemetry
from gateway.types import (
    Caller,
    ChatRequest,
    FinishReason,
    Job,
    Message,
    Mode,
    Prompt,
    Sampling,
    Signal,
)

POLICY = """\
version: 1
name: unit
default: {mode: speculative}
rules:
  - {id: forbidden, deny: Not here., when: {keyword: [forbidden]}}
  - {id: modest, when: {keyword: [modest]}, decide: {mode: standard, max_temperature: 0.5,
     max_tokens: 3}}
  - {id: moved, when: {keyword: [moved]}, decide: {mode: standard, backend: second}}
"""


class FakeAudit:
    """Keeps records in a list; fails or waits when told to."""

    def __init__(self) -> None:
        self.records: list[DecisionRecord | OutcomeRecord] = []
        self.fail_decision = False
        self.fail_outcome: Exception | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.closed = False

    @property
    def decision(self) -> DecisionRecord:
        (record,) = [r for r in self.records if isinstance(r, DecisionRecord)]
        return record

    @property
    def outcome(self) -> OutcomeRecord:
        (record,) = [r for r in self.records if isinstance(r, OutcomeRecord)]
        return record

    async def append_decision(self, record: DecisionRecord) -> None:
        await self.hold.wait()
        if self.fail_decision:
            raise AuditUnavailable("The disk is full.")
        self.records.append(record)

    async def append_outcome(self, record: OutcomeRecord) -> None:
        await self.hold.wait()
        if self.fail_outcome is not None:
            raise self.fail_outcome
        self.records.append(record)

    async def aclose(self) -> None:
        self.closed = True


class Watched(ScriptedBackend):
    """A scripted backend that notes what was in the log when it was asked to generate."""

    def __init__(self, audit: FakeAudit, *, name: str = "first", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.audit = audit
        self.jobs: list[Job] = []
        self.recorded: list[int] = []

    async def generate(self, job: Job) -> Any:
        self.jobs.append(job)
        self.recorded.append(len(self.audit.records))
        return await super().generate(job)


def make(
    audit: FakeAudit,
    *,
    backends: Mapping[str, Backend] | None = None,
    classifiers: Mapping[str, Classifier] | None = None,
    audit_required: bool = True,
    policy: str = POLICY,
    **options: Any,
) -> Gateway:
    return Gateway(
        backends=backends or {"first": Watched(audit, **options)},
        policy=ActivePolicy(
            parse_policy(policy, "unit.yaml", verifiers=["coupled"], draft_sources=["suffix"])
        ),
        classifiers=classifiers or {},
        audit=audit,
        telemetry=Telemetry(["scripted"]),
        audit_required=audit_required,
    )


def ask(text: str = "hello", **fields: Any) -> ChatRequest:
    return ChatRequest("scripted", (Message("user", text),), body=text.encode(), **fields)


async def read(reply: Reply) -> str:
    return "".join([chunk.text async for chunk in reply])


async def settled(audit: FakeAudit) -> OutcomeRecord:
    for _ in range(200):
        if any(isinstance(record, OutcomeRecord) for record in audit.records):
            return audit.outcome
        await asyncio.sleep(0.005)
    raise AssertionError("no outcome")


async def test_the_decision_is_on_record_before_generation_and_the_outcome_at_the_end() -> None:
    audit = FakeAudit()
    backend = Watched(audit)
    gateway = make(audit, backends={"first": backend})

    reply = await gateway.respond(ask(), Caller("ann", team="red"), request_id="req_mine")
    text = await read(reply)

    assert text == "This answer comes from a script."
    assert backend.recorded == [1]
    assert [DecisionRecord, OutcomeRecord] == [type(record) for record in audit.records]
    assert audit.decision.decision_id == audit.outcome.decision_id == reply.decision_id
    assert "req_mine" == audit.decision.request_id == reply.request_id
    assert Caller("ann", team="red") == audit.decision.caller
    assert audit.decision.backend == "first"
    assert audit.outcome.finish_reasons == (FinishReason.STOP,)
    assert audit.outcome.execution.mode == Mode.SPECULATIVE
    assert audit.outcome.execution.usage.completion_tokens == 6
    assert audit.outcome.attestation == "ok"
    assert audit.outcome.error is None
    timings = audit.outcome.timings
    assert timings.first_token is not None
    assert 0 < timings.first_token <= timings.total


async def test_an_unknown_model_names_the_known_ones_and_leaves_no_record() -> None:
    audit = FakeAudit()
    request = msgspec.structs.replace(ask(), model="gpt-9")

    with pytest.raises(ModelNotFound, match="'gpt-9' does not exist; known: scripted") as caught:
        await make(audit).respond(request, Caller())

    assert caught.value.receipt is None
    assert audit.records == []


async def test_a_prompt_that_is_too_long_is_refused_before_any_decision() -> None:
    audit = FakeAudit()

    with pytest.raises(ContextLengthExceeded):
        await make(audit, max_length=3).respond(ask("one two three four"), Caller())

    assert audit.records == []


async def test_a_denied_request_has_both_records_and_generates_nothing() -> None:
    audit = FakeAudit()
    backend = Watched(audit)

    with pytest.raises(PolicyDenied, match=r"Not here\.") as caught:
        await make(audit, backends={"first": backend}).respond(ask("forbidden"), Caller())

    assert backend.jobs == []
    assert audit.decision.decision.rule == "forbidden"
    assert audit.outcome.error == "policy_denied: Not here."
    assert audit.outcome.execution.mode is None
    assert isinstance(caught.value.receipt, Receipt)
    assert audit.decision.decision_id == caught.value.receipt.decision_id


async def test_nothing_is_generated_when_the_decision_cannot_be_recorded() -> None:
    audit = FakeAudit()
    audit.fail_decision = True
    backend = Watched(audit)
    gateway = make(audit, backends={"first": backend})

    with pytest.raises(AuditUnavailable) as caught:
        await gateway.respond(ask(), Caller())

    assert caught.value.receipt is None
    assert backend.jobs == []
    assert audit.records == []
    assert b'draftgate_audit_failures_total{record="decision"} 1.0' in gateway.telemetry.render()


async def test_an_optional_log_that_fails_is_counted_and_the_answer_goes_on() -> None:
    audit = FakeAudit()
    audit.fail_decision = True
    gateway = make(audit, audit_required=False)

    text = await read(await gateway.respond(ask(), Caller()))

    assert text
    assert audit.records == []
    rendered = gateway.telemetry.render()
    assert b'draftgate_audit_failures_total{record="decision"} 1.0' in rendered
    assert b'outcome="stop"} 1.0' in rendered


@pytest.mark.parametrize("failure", [AuditUnavailable("The disk is full."), OSError("broken")])
async def test_an_outcome_that_cannot_be_written_does_not_spoil_the_answer(
    failure: Exception,
) -> None:
    audit = FakeAudit()
    audit.fail_outcome = failure

    text = await read(await make(audit).respond(ask(), Caller()))

    assert text == "This answer comes from a script."


async def test_the_end_of_an_answer_means_that_its_outcome_is_on_record() -> None:
    audit = FakeAudit()
    reply = await make(audit).respond(ask(), Caller())
    audit.hold.clear()
    reader = asyncio.create_task(read(reply))
    await asyncio.sleep(0.02)
    assert not reader.done()

    audit.hold.set()
    await reader

    assert audit.outcome.finish_reasons == (FinishReason.STOP,)


async def test_a_failure_before_the_first_chunk_is_raised_with_its_receipt() -> None:
    audit = FakeAudit()

    with pytest.raises(BackendFailed, match="script says") as caught:
        await make(audit, fail_after=0).respond(ask(), Caller())

    assert isinstance(caught.value.receipt, Receipt)
    assert audit.outcome.finish_reasons == (FinishReason.ERROR,)
    assert audit.outcome.error is not None
    assert audit.outcome.error.startswith("backend_failed: ")


async def test_a_failure_midway_keeps_the_counts_so_far() -> None:
    audit = FakeAudit()
    reply = await make(audit, fail_after=2).respond(ask(), Caller())

    with pytest.raises(BackendFailed):
        await read(reply)

    assert audit.outcome.finish_reasons == (FinishReason.ERROR,)
    assert audit.outcome.execution.usage.completion_tokens == 2


async def test_a_full_queue_is_recorded_and_raised() -> None:
    audit = FakeAudit()

    with pytest.raises(QueueFull) as caught:
        await make(audit, max_running=0, max_queued=0).respond(ask(), Caller())

    assert caught.value.retry_after == 1
    assert audit.outcome.error is not None
    assert audit.outcome.error.startswith("queue_full: ")


async def test_a_cancelled_answer_is_recorded_as_cancelled_with_its_counts() -> None:
    audit = FakeAudit()
    gateway = make(audit, chunk_seconds=60)
    reply = await gateway.respond(ask(), Caller())

    reply.cancel()
    outcome = await settled(audit)

    assert outcome.finish_reasons == (FinishReason.CANCELLED,)
    assert outcome.execution.usage.completion_tokens == 1
    assert gateway.status().backends["first"].running == 0


async def test_cancelling_the_wait_for_the_first_chunk_cancels_the_answer() -> None:
    audit = FakeAudit()
    gateway = make(audit, first_chunk_seconds=60)
    waiting = asyncio.create_task(gateway.respond(ask(), Caller()))
    await asyncio.sleep(0.02)

    waiting.cancel()
    outcome = await settled(audit)

    assert outcome.finish_reasons == (FinishReason.CANCELLED,)
    assert gateway.status().backends["first"].running == 0


async def test_cancelling_while_the_decision_is_being_written_leaves_a_closed_record() -> None:
    audit = FakeAudit()
    audit.hold.clear()
    backend = Watched(audit)
    gateway = make(audit, backends={"first": backend})
    waiting = asyncio.create_task(gateway.respond(ask(), Caller()))
    await asyncio.sleep(0.01)

    waiting.cancel()
    await asyncio.sleep(0.01)
    audit.hold.set()
    outcome = await settled(audit)

    assert audit.decision.decision_id == outcome.decision_id
    assert outcome.finish_reasons == (FinishReason.CANCELLED,)
    assert backend.jobs == []


async def test_the_limits_of_a_rule_cap_the_request() -> None:
    audit = FakeAudit()
    request = ask("be modest", sampling=Sampling(temperature=1.5, max_tokens=50, seed=-7))

    await read(await make(audit).respond(request, Caller()))

    assert audit.decision.sampling.temperature == 0.5
    assert audit.decision.sampling.max_tokens == 3
    assert audit.decision.sampling.seed == -7
    assert audit.outcome.finish_reasons == (FinishReason.LENGTH,)


async def test_a_limit_never_raises_what_the_request_asked_for() -> None:
    audit = FakeAudit()
    request = ask("be modest", sampling=Sampling(temperature=0.1, max_tokens=2))

    await read(await make(audit).respond(request, Caller()))

    assert audit.decision.sampling.temperature == 0.1
    assert audit.decision.sampling.max_tokens == 2


async def test_a_seed_is_drawn_recorded_and_given_to_the_backend() -> None:
    seeds = set()
    for _ in range(3):
        audit = FakeAudit()
        backend = Watched(audit)
        await read(await make(audit, backends={"first": backend}).respond(ask(), Caller()))
        assert backend.jobs[0].sampling.seed == audit.decision.sampling.seed
        seeds.add(audit.decision.sampling.seed)

    assert len(seeds) == 3
    assert all(seed is not None and 0 <= seed < 2**53 for seed in seeds)


@pytest.mark.parametrize(
    "execution",
    [
        {"mode": "speculative", "num_draft_tokens": 4},
        {"mode": "standard", "num_draft_tokens": 1},
        {"verifier_class": "lossy"},
    ],
)
async def test_what_ran_against_the_decision_fails_the_attestation(
    execution: Mapping[str, Any],
) -> None:
    audit = FakeAudit()
    gateway = make(audit, execution=execution)

    await read(await gateway.respond(ask("be modest"), Caller()))

    assert audit.decision.decision.mode == Mode.STANDARD
    assert audit.outcome.attestation == "attestation_failed"
    assert b"draftgate_attestation_failed_total 1.0" in gateway.telemetry.render()


async def test_a_rule_may_send_a_request_to_another_backend() -> None:
    audit = FakeAudit()
    first, second = Watched(audit), Watched(audit, name="second", replies=["Second."])
    gateway = make(audit, backends={"first": first, "second": second})

    text = await read(await gateway.respond(ask("moved"), Caller()))

    assert text == "Second."
    assert audit.decision.backend == "second"
    assert audit.outcome.attestation == "ok"
    assert first.jobs == []


class Wordy(Watched):
    """Counts every prompt as ``length`` tokens."""

    def __init__(self, audit: FakeAudit, name: str, length: int) -> None:
        super().__init__(audit, name=name)
        self.length = length

    async def prepare(self, request: ChatRequest) -> Prompt:
        return Prompt(self.length)


LONG_IS_BANNED = """\
version: 1
name: lengths
rules:
  - {id: long, when: {min_prompt_tokens: 100}, ban: [speculative, hybrid]}
  - {id: fast, decide: {mode: speculative, backend: second}}
"""


@pytest.mark.parametrize(
    ("lengths", "mode", "answering"),
    [
        ((9, 9), Mode.SPECULATIVE, "second"),
        ((9, 100), Mode.STANDARD, "second"),
        ((100, 9), Mode.STANDARD, "first"),
    ],
)
async def test_the_policy_sees_the_prompts_length_on_the_backend_that_answers(
    lengths: tuple[int, int], mode: Mode, answering: str
) -> None:
    audit = FakeAudit()
    backends = {
        name: Wordy(audit, name, length)
        for name, length in zip(("first", "second"), lengths, strict=True)
    }

    await read(await make(audit, backends=backends, policy=LONG_IS_BANNED).respond(ask(), Caller()))

    record = audit.decision
    assert (record.decision.mode, record.backend) == (mode, answering)
    assert record.request.prompt_tokens == backends[answering].length
    (seen,) = [step for step in record.decision.trace if step.rule == "long"]
    assert seen.detail.startswith(f"prompt_tokens {backends[answering].length} ")
    assert audit.outcome.execution.backend == answering
    assert audit.outcome.attestation == "ok"
    assert [len(backend.jobs) for backend in backends.values()] == [
        int(name == answering) for name in backends
    ]


async def test_rules_that_send_a_request_round_in_a_circle_are_refused() -> None:
    audit = FakeAudit()
    policy = """\
version: 1
name: circle
rules:
  - {id: long, when: {min_prompt_tokens: 100}, decide: {mode: standard, backend: first}}
  - {id: short, decide: {mode: standard, backend: second}}
"""
    backends = {"first": Wordy(audit, "first", 9), "second": Wordy(audit, "second", 100)}

    with pytest.raises(Unavailable, match="circle of backends"):
        await make(audit, backends=backends, policy=policy).respond(ask(), Caller())

    assert audit.records == []


async def test_a_backend_that_answers_for_another_fails_the_attestation() -> None:
    audit = FakeAudit()
    gateway = make(audit, backends={"first": Watched(audit, name="other")})

    await read(await gateway.respond(ask(), Caller()))

    assert audit.outcome.attestation == "attestation_failed"


async def test_a_rule_that_names_a_backend_without_the_model_is_refused() -> None:
    audit = FakeAudit()
    backends = {"first": Watched(audit), "second": Watched(audit, models=["other"])}

    with pytest.raises(Unavailable, match="'second', which does not serve the model 'scripted'"):
        await make(audit, backends=backends).respond(ask("moved"), Caller())


async def test_token_ids_count_as_text_that_no_classifier_has_read() -> None:
    audit = FakeAudit()
    request = ChatRequest("scripted", prompt=(1, 2, 3))

    await read(await make(audit).respond(request, Caller()))

    assert audit.decision.signals.truncated
    assert audit.decision.decision.rule == "on_truncated_input"
    assert audit.decision.decision.mode == Mode.STANDARD


class BrokenClassifier:
    content_hash = "0" * 64

    def classify(self, request: ChatRequest) -> Reading:
        raise ValueError("cannot")


class MedicalClassifier:
    content_hash = "1" * 64

    def classify(self, request: ChatRequest) -> Reading:
        return Reading((Signal("domain", "medical", 0.9, "test"),), 1, 1)


async def test_a_backend_is_told_whose_job_it_is_and_what_it_is_about() -> None:
    audit = FakeAudit()
    backend = Watched(audit)
    told = make(audit, backends={"first": backend}, classifiers={"domain": MedicalClassifier()})
    await read(await told.respond(ask(), Caller("ann")))
    await read(await make(FakeAudit(), backends={"first": backend}).respond(ask(), Caller()))

    assert [(job.caller_id, job.domain) for job in backend.jobs] == [
        ("ann", "medical"),
        ("anonymous", ""),
    ]


async def test_a_broken_classifier_leads_to_the_standard_mode() -> None:
    audit = FakeAudit()
    policy = POLICY + "  - {id: a, when: {domain: {is: code}}, decide: {mode: speculative}}\n"
    gateway = make(audit, classifiers={"bad": BrokenClassifier()}, policy=policy)

    await read(await gateway.respond(ask(), Caller()))

    assert audit.decision.decision.mode == Mode.STANDARD
    assert audit.decision.signals.error == "bad: ValueError: cannot"


async def test_the_classifiers_signals_reach_the_policy_and_the_record() -> None:
    audit = FakeAudit()
    policy = POLICY + "  - {id: med, ban: [speculative], when: {domain: {is: medical}}}\n"
    gateway = make(audit, classifiers={"domain": MedicalClassifier()}, policy=policy)

    await read(await gateway.respond(ask(), Caller()))

    assert audit.decision.decision.mode == Mode.STANDARD
    assert audit.decision.signals.score("domain", "medical") == 0.9
    assert audit.decision.signals.classifiers == {"domain": "1" * 64}


class Rude(ScriptedBackend):
    """Breaks the backends' contract in a chosen way."""

    def __init__(self, chunks: Sequence[Chunk], failure: Exception | None = None) -> None:
        super().__init__(name="first")
        self.chunks = chunks
        self.failure = failure

    async def generate(self, job: Job) -> Any:
        generation = await super().generate(job)
        generation._steps = self.chunks
        if self.failure is not None:
            raise self.failure
        return generation


@pytest.mark.parametrize(
    ("chunks", "failure", "detail"),
    [
        ([Chunk(text="a")], None, "no finish reason came for 1 of the choices"),
        ([], None, "no finish reason came for 1 of the choices"),
        ([Chunk(finish_reason=FinishReason.ERROR)], None, "the backend gave up: error"),
        ([Chunk(finish_reason=FinishReason.CANCELLED)], None, "the backend gave up: cancelled"),
        ([], RuntimeError("secret weights path"), "RuntimeError: secret weights path"),
        ([], BackendFailed(detail="CUDA is out of memory"), "CUDA is out of memory"),
    ],
)
async def test_why_a_backend_broke_is_recorded_and_logged_and_not_told(
    capsys: pytest.CaptureFixture[str],
    chunks: Sequence[Chunk],
    failure: Exception | None,
    detail: str,
) -> None:
    audit = FakeAudit()
    gateway = make(audit, backends={"first": Rude(chunks, failure)})

    with pytest.raises(GatewayError) as caught:
        await read(await gateway.respond(ask(), Caller()))

    told = "The answer could not be generated; the server's log says why."
    assert told == caught.value.message == str(caught.value)
    assert audit.outcome.finish_reasons == (FinishReason.ERROR,)
    assert audit.outcome.error == f"backend_failed: {detail}"
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["error"] == f"backend_failed: {detail}"


async def test_two_at_once_do_not_mix() -> None:
    audit = FakeAudit()
    replies = {"red": "red red red", "blue": "blue blue"}
    gateway = make(audit, replies=replies, chunk_seconds=0.001)

    first = await gateway.respond(ask("red"), Caller())
    second = await gateway.respond(ask("blue"), Caller())
    texts = await asyncio.gather(read(first), read(second))

    assert [*texts] == ["red red red", "blue blue"]
    assert len({(type(r), r.decision_id) for r in audit.records}) == 4
    assert len({record.decision_id for record in audit.records}) == 2


async def test_closing_cancels_what_runs_and_waits_for_its_outcome() -> None:
    audit = FakeAudit()
    gateway = make(audit, chunk_seconds=60)
    reply = await gateway.respond(ask(), Caller())
    await anext(reply)

    await gateway.aclose()

    assert audit.outcome.finish_reasons == (FinishReason.CANCELLED,)
    assert audit.closed
    with pytest.raises(Unavailable):
        await read(reply)
    with pytest.raises(Unavailable, match="shutting down"):
        await gateway.respond(ask(), Caller())
    assert not gateway.status().ready


async def test_models_are_listed_once_each() -> None:
    audit = FakeAudit()
    backends = {
        "first": Watched(audit, models=["a", "b"]),
        "second": Watched(audit, models=["b", "c"]),
    }

    assert [model.id for model in make(audit, backends=backends).models()] == ["a", "b", "c"]


async def test_ids_sort_by_time() -> None:
    audit = FakeAudit()
    gateway = make(audit)
    for _ in range(3):
        await read(await gateway.respond(ask(), Caller()))
        await asyncio.sleep(0.002)

    ids = [r.decision_id for r in audit.records if isinstance(r, DecisionRecord)]
    assert sorted(ids) == ids
