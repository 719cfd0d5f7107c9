"""Decoding a logged request again: equal by digests, else where and by how much, or why not."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from gateway.again import Decoded, Run
from gateway.audit.digests import Digests
from gateway.audit.keys import keyring
from gateway.audit.query import Entry
from gateway.backends.scripted import ScriptedBackend
from gateway.errors import BackendFailed, InvalidRequest, Unavailable
from gateway.execution import Execution
from gateway.redecode import decode_again
from gateway.types import ChatRequest, FinishReason, Job, Message, Mode, Prompt
from tests.records import decision_record, outcome_record

REQUEST = ChatRequest("small", (Message("user", "x"),))
EMITTED = ((1, 2, 3),)
DIGESTS = Digests()


class FakeBackend(ScriptedBackend):
    """Gives tokens by mode."""

    def __init__(
        self,
        standard: Sequence[Sequence[int]] | None,
        other: Sequence[Sequence[int]] | None = None,
        *,
        tokens: int = 12,
        text: str = "text",
    ) -> None:
        super().__init__()
        self.given = {True: standard, False: other}
        self.tokens, self.text = tokens, text
        self.jobs: list[Job] = []

    async def prepare(self, request: ChatRequest) -> Prompt:
        return Prompt(self.tokens)

    async def decode_again(self, job: Job, *, patient: bool) -> Run | None:
        assert not patient
        self.jobs.append(job)
        is_standard = job.decision.mode is Mode.STANDARD
        answers = self.given[is_standard]
        if answers is None and not is_standard:
            raise BackendFailed(detail="no such draft source")
        if answers is None:
            return None
        return Run(
            answers=tuple(Decoded(tuple(ids), (0.5,) * len(ids)) for ids in answers),
            texts=(self.text,),
            execution=Execution(fingerprint="here"),
        )


def entry(emitted: Sequence[Sequence[int]] = EMITTED, **execution: object) -> Entry:
    fields: dict[str, object] = {
        "output_digests": tuple(DIGESTS.of_tokens(ids).value for ids in emitted),
        "output_lengths": tuple(map(len, emitted)),
        "fingerprint": "here",
        **execution,
    }
    outcome = outcome_record()
    run = msgspec.structs.replace(outcome.execution, **fields)
    return Entry(decision_record(), msgspec.structs.replace(outcome, execution=run))


async def test_equal_tokens_are_found_by_their_digests_alone() -> None:
    backend = FakeBackend(EMITTED)

    found = await decode_again(entry(), REQUEST, backend, DIGESTS)

    assert (found.equal, found.answers, found.num_tokens) == (True, (True,), (3,))
    assert (found.difference, found.notes, found.same_model) == (None, (), True)
    (job,) = backend.jobs
    assert job.sampling == decision_record().sampling
    assert job.request.sampling == decision_record().sampling


async def test_a_difference_is_located_by_decoding_as_decided_once_more() -> None:
    backend = FakeBackend([(1, 9, 3)], EMITTED)

    found = await decode_again(entry(), REQUEST, backend, DIGESTS)

    assert not found.equal
    assert found.difference is not None
    assert (found.difference.answer, found.difference.position) == (0, 1)
    assert found.difference.margin == 0.5
    assert backend.jobs[1].decision == decision_record().decision


@pytest.mark.parametrize("other", [None, [(1, 2, 4)]])
async def test_where_that_gives_something_else_too_the_captured_answer_tells(
    other: Sequence[Sequence[int]] | None,
) -> None:
    backend = FakeBackend([(1, 9, 3)], other, text="the cat")

    found = await decode_again(entry(), REQUEST, backend, DIGESTS, ["the dog"])

    assert (found.equal, found.difference, found.character) == (False, None, 4)


async def test_one_of_several_answers_that_differs_is_named() -> None:
    found = await decode_again(entry(((1,), (2,))), REQUEST, FakeBackend([(1,), (3,)]), DIGESTS)

    assert (found.equal, found.answers) == (False, (True, False))


async def test_an_answer_that_was_cut_off_is_compared_as_far_as_it_came() -> None:
    cut = entry(((1, 2),))
    assert cut.outcome is not None
    ended = msgspec.structs.replace(cut.outcome, finish_reasons=(FinishReason.CANCELLED,))

    found = await decode_again(
        msgspec.structs.replace(cut, outcome=ended), REQUEST, FakeBackend(EMITTED), DIGESTS
    )

    assert (found.equal, found.num_tokens) == (True, (2,))
    assert not (await decode_again(cut, REQUEST, FakeBackend(EMITTED), DIGESTS)).equal


async def test_what_may_explain_a_difference_is_noted() -> None:
    logged = entry(verifier="rejection", fingerprint="there")

    found = await decode_again(logged, REQUEST, FakeBackend([(7,)], tokens=13), DIGESTS)

    assert (found.is_comparable, found.same_model) == (False, False)
    assert found.notes == (
        "another model, dtype, kernel or engine decodes here than the one that answered",
        "the prompt has 13 tokens here, and had 12",
        "the verifier rejection draws other tokens in speculative mode",
    )


async def test_what_cannot_be_compared_is_refused() -> None:
    for logged in (
        Entry(decision_record(), None),
        entry(mode=None),
        entry(output_digests=()),
        entry(((1,), (2,))),
    ):
        with pytest.raises(InvalidRequest):
            await decode_again(logged, REQUEST, FakeBackend(EMITTED), DIGESTS)
    with pytest.raises(Unavailable, match="cannot decode again"):
        await decode_again(entry(), REQUEST, ScriptedBackend(), DIGESTS)
    with pytest.raises(Unavailable, match="stopped"):
        await decode_again(entry(), REQUEST, FakeBackend(None), DIGESTS)


async def test_answers_are_known_by_digests_that_another_key_of_the_log_made() -> None:
    old_key, new_key = ("old", b"k" * 32), ("new", b"n" * 32)
    old, both = Digests(keyring([old_key])), Digests(keyring([new_key, old_key]))
    logged = entry(output_digests=(old.of_tokens(EMITTED[0]).value,))
    facts = msgspec.structs.replace(logged.decision.request, digest_key="old")
    logged = msgspec.structs.replace(
        logged, decision=msgspec.structs.replace(logged.decision, request=facts)
    )

    assert (await decode_again(logged, REQUEST, FakeBackend(EMITTED), both)).equal
    with pytest.raises(InvalidRequest, match="'old'"):
        await decode_again(logged, REQUEST, FakeBackend(EMITTED), DIGESTS)
