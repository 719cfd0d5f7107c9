"""Shadow runs: which answers, what is recorded, and that they stay out of everybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.again import Comparison, Decoded, Run, compare, first_difference
from gateway.audit.record import Addendum, DecisionRecord, Shadow
from gateway.errors import AuditUnavailable, QueueFull
from gateway.execution import Execution
from gateway.shadows import Shadows, is_chosen
from gateway.telemetry import Telemetry
from gateway.types import ChatRequest, Job, Message, Mode, Prompt, Sampling
from tests.records import decided

EMITTED = ((1, 2, 3), (4, 5))


class FakeLog:
    def __init__(self) -> None:
        self.records: list[Shadow] = []
        self.fails = False

    async def append_addendum(self, record: Addendum) -> None:
        if self.fails:
            raise AuditUnavailable("The disk is full.")
        assert isinstance(record, Shadow)
        self.records.append(record)


class FakeBackend:
    """Gives what it is told to, when it is let."""

    def __init__(self, *answers: Sequence[int], margin: float = 0.25) -> None:
        self.jobs: list[Job] = []
        self.free = asyncio.Event()
        self.free.set()
        self.error: Exception | None = None
        self.run: Run | None = Run(
            answers=tuple(Decoded(tuple(ids), (margin,) * len(ids)) for ids in answers),
            texts=(),
            execution=Execution(fingerprint="model"),
        )

    async def decode_again(self, job: Job, *, patient: bool) -> Run | None:
        assert patient
        self.jobs.append(job)
        await self.free.wait()
        if self.error is not None:
            raise self.error
        return self.run


def job() -> Job:
    request = ChatRequest("m", (Message("user", "x"),), n=2, echo=True, body=b"x" * 1000)
    return Job("req", request, record().decision, Sampling(seed=3), Prompt(4, "ids"))


def record(number: int = 0, rate: float = 1.0) -> DecisionRecord:
    return decided(number, shadow_rate=rate)


def make(**options: int) -> tuple[Shadows, FakeLog, Telemetry]:
    log, telemetry = FakeLog(), Telemetry()
    return Shadows(log, telemetry, **options), log, telemetry


async def written(log: FakeLog, count: int = 1) -> list[Shadow]:
    for _ in range(400):
        if len(log.records) >= count:
            return log.records
        await asyncio.sleep(0.005)
    raise AssertionError(log.records)


async def test_equal_tokens_are_recorded_and_counted() -> None:
    shadows, log, telemetry = make()
    backend = FakeBackend(*EMITTED)

    shadows.offer(record(), backend, job(), EMITTED)
    (shadow,) = await written(log)

    assert (shadow.result, shadow.num_tokens, shadow.position) == ("equal", 5, None)
    assert shadow.fingerprint == "model"
    assert b'draftgate_shadow_runs_total{result="equal"} 1.0' in telemetry.render()
    (ran,) = backend.jobs
    assert (ran.decision.mode, ran.decision.draft) == (Mode.STANDARD, None)
    assert ran.sampling == job().sampling
    assert (ran.request.n, ran.request.echo, ran.request.body) == (2, False, b"")


async def test_the_first_difference_is_recorded_with_its_margin() -> None:
    shadows, log, telemetry = make()

    shadows.offer(record(), FakeBackend((1, 2, 3), (4, 9)), job(), EMITTED)
    (shadow,) = await written(log)

    assert (shadow.result, shadow.answer, shadow.position) == ("different", 1, 1)
    assert (shadow.margin, shadow.num_tokens) == (0.25, 5)
    assert b'draftgate_shadow_runs_total{result="different"} 1.0' in telemetry.render()


@pytest.mark.parametrize(
    ("error", "reason"),
    [(None, "evicted"), (QueueFull("full"), "failed"), (RuntimeError("broken"), "failed")],
)
async def test_what_does_not_come_to_its_end_is_recorded_as_dropped(
    error: Exception | None, reason: str
) -> None:
    shadows, log, _ = make()
    backend = FakeBackend()
    backend.run, backend.error = None, error

    shadows.offer(record(), backend, job(), EMITTED)
    shadows.offer(record(1), FakeBackend(*EMITTED), job(), EMITTED)

    first, second = await written(log, 2)
    assert (first.result, first.reason) == ("dropped", reason)
    assert second.result == "equal"


async def test_one_runs_at_a_time_and_a_full_line_drops_the_newest() -> None:
    shadows, log, _ = make(max_waiting=2)
    backend = FakeBackend(*EMITTED)
    backend.free.clear()
    shadows.offer(record(0), backend, job(), EMITTED)
    await asyncio.sleep(0.01)

    for number in (1, 2, 3):
        shadows.offer(record(number), backend, job(), EMITTED)

    (dropped,) = await written(log)
    assert (dropped.decision_id, dropped.reason) == ("dec_000003", "queue_full")
    assert len(backend.jobs) == 1
    backend.free.set()
    found = await written(log, 4)
    assert [shadow.result for shadow in found] == ["dropped", "equal", "equal", "equal"]


async def test_at_the_end_all_that_waits_or_runs_is_dropped_and_on_record() -> None:
    shadows, log, _ = make()
    backend = FakeBackend(*EMITTED)
    backend.free.clear()
    for number in range(3):
        shadows.offer(record(number), backend, job(), EMITTED)
    await asyncio.sleep(0.01)

    await shadows.aclose()
    shadows.offer(record(3), backend, job(), EMITTED)
    await shadows.aclose()

    assert [(s.decision_id, s.reason) for s in log.records] == [
        (f"dec_{number:06d}", "shutdown") for number in range(4)
    ]


async def test_a_result_that_cannot_be_written_is_counted_and_the_next_one_runs() -> None:
    shadows, log, telemetry = make()
    log.fails = True
    shadows.offer(record(0), FakeBackend(*EMITTED), job(), EMITTED)
    await asyncio.sleep(0.02)
    log.fails = False
    shadows.offer(record(1), FakeBackend(*EMITTED), job(), EMITTED)

    (shadow,) = await written(log)

    assert shadow.decision_id == "dec_000001"
    assert b'draftgate_audit_failures_total{record="shadow"} 1.0' in telemetry.render()


def test_the_share_is_of_drafted_answers_and_follows_from_the_id() -> None:
    ids = [f"dec_{number}" for number in range(4000)]
    chosen = {id_ for id_ in ids if is_chosen(id_, 0.1)}

    assert 300 < len(chosen) < 500
    assert chosen <= {id_ for id_ in ids if is_chosen(id_, 0.2)}
    assert not any(is_chosen(id_, 0.0) for id_ in ids)
    assert all(is_chosen(id_, 1.0) for id_ in ids)


async def test_standard_answers_are_not_decoded_again() -> None:
    shadows, _, _ = make()

    assert shadows.wants(record(), Execution(mode=Mode.SPECULATIVE))
    assert not shadows.wants(record(rate=0.0), Execution(mode=Mode.SPECULATIVE))
    assert not shadows.wants(record(), Execution(mode=Mode.STANDARD))
    assert not shadows.wants(record(), Execution())


def test_runs_are_compared_token_by_token() -> None:
    def runs(*answers: Sequence[int]) -> list[Decoded]:
        return [Decoded(tuple(ids), tuple(float(i) for i in range(len(ids)))) for ids in answers]

    assert compare(EMITTED, runs((1, 2, 3), (4, 5))) == Comparison(equal=True, num_tokens=5)
    assert compare([(1, 2)], runs((1, 7, 8))) == Comparison(
        equal=False, num_tokens=2, answer=0, position=1, margin=1.0
    )
    # One that goes on where the other ended differs there; it has no margin where it ended.
    longer = compare([(1, 2)], runs((1, 2, 3)))
    assert (longer.equal, longer.position, longer.margin) == (False, 2, 2.0)
    shorter = compare([(1, 2)], runs((1,)))
    assert (shorter.equal, shorter.position, shorter.margin) == (False, 1, None)
    assert compare([(1,)], [Decoded((2,), (float("inf"),))]).margin is None
    assert first_difference((), ()) is None
    with pytest.raises(ValueError, match="zip"):
        compare(EMITTED, runs((1, 2, 3)))
