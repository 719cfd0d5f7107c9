"""Decodes a logged request again in standard mode and holds the tokens against what the log says.

That is what `draftgate decisions replay` does. Knows nothing of where records and bodies come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gateway.again import Comparison, Decoded, Run, compare, first_difference
from gateway.audit.digests import Digest, Digests
from gateway.audit.query import Entry
from gateway.audit.record import DecisionRecord
from gateway.backends.base import Backend, Redecoder
from gateway.errors import BackendFailed, ConfigError, InvalidRequest, Unavailable
from gateway.execution import Execution
from gateway.routing.tighten import standard
from gateway.types import ChatRequest, Decision, FinishReason, Job, Mode, Prompt

_CUT_OFF = {FinishReason.CANCELLED, FinishReason.ERROR}


class Redecoded(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    decision_id: str
    equal: bool
    """Whether every answer has the tokens that were emitted, by their digests."""
    answers: tuple[bool, ...]
    """The same of each answer, in the order of their seeds."""
    num_tokens: tuple[int, ...]
    """How many tokens of each answer were held against the log."""
    decided: str
    """The mode that had run."""
    verifier: str
    is_comparable: bool
    """Whether equality is to be expected: not where the verifier draws otherwise in each mode."""
    same_model: bool
    fingerprint: str
    logged_fingerprint: str
    difference: Comparison | None = None
    """The first difference, where decoding as decided gave once more what was logged; None where
    there is none, or where that too gave something else."""
    character: int | None = None
    """The first character that is not as captured, where the whole answer was."""
    texts: tuple[str, ...] = ()
    """The choices, as decoded now."""
    notes: tuple[str, ...] = ()
    """What may explain a difference."""


async def decode_again(
    entry: Entry,
    request: ChatRequest,
    backend: Backend,
    digests: Digests,
    captured: Sequence[str] = (),
) -> Redecoded:
    """Decode ``request``, which is that of ``entry``, in standard mode with its logged seed and sampling.

    ``captured`` are the choices' texts where they are known. Raises InvalidRequest where the log has
    nothing to compare with or ``digests`` lacks its key, Unavailable for a backend that cannot, and
    what its `prepare` raises.
    """
    record, logged = entry.decision, _logged(entry)
    if not digests.knows(record.request.digest_key):
        raise InvalidRequest(
            f"The digests were made with the key {record.request.digest_key!r} of the log, which the "
            "environment does not hold."
        )
    if not isinstance(backend, Redecoder):
        raise Unavailable(f"The backend {record.backend!r} cannot decode again.")
    request = msgspec.structs.replace(request, sampling=record.sampling)
    prompt = await backend.prepare(request)
    run = await _run(backend, record, request, prompt, standard(record.decision, "replay"))
    answers = _cut(run, entry)
    same = _matches(answers, entry, digests)
    difference = None
    if not all(same):
        difference = await _difference(backend, request, prompt, entry, digests, answers)
    return Redecoded(
        decision_id=record.decision_id,
        equal=all(same),
        answers=same,
        num_tokens=tuple(len(answer.token_ids) for answer in answers),
        decided=(logged.mode or record.decision.mode).value,
        verifier=record.decision.verifier,
        is_comparable=_is_comparable(record, logged),
        same_model=run.execution.fingerprint == logged.fingerprint,
        fingerprint=run.execution.fingerprint,
        logged_fingerprint=logged.fingerprint,
        difference=difference,
        character=None if all(same) else _first_character(run.texts, captured),
        texts=run.texts,
        notes=tuple(_notes(record, logged, run, prompt)),
    )


def _logged(entry: Entry) -> Execution:
    outcome = entry.outcome
    if outcome is None or outcome.execution.mode is None:
        raise InvalidRequest("The log says of no answer that this request was given.")
    if not outcome.execution.output_digests:
        raise InvalidRequest(
            "The log has no digest of what was emitted: the answer was empty, its backend has no "
            "tokens, or an earlier version wrote the record."
        )
    return outcome.execution


async def _run(
    backend: Redecoder,
    record: DecisionRecord,
    request: ChatRequest,
    prompt: Prompt,
    decision: Decision,
) -> Run:
    job = Job("replay", request, decision, record.sampling, prompt, caller_id=record.caller.id)
    run = await backend.decode_again(job, patient=False)
    if run is None:
        raise Unavailable("The backend stopped before the answer was whole.")
    return run


def _cut(run: Run, entry: Entry) -> tuple[Decoded, ...]:
    """The answers, as far as the logged ones came where those were cut off."""
    outcome = entry.outcome
    if outcome is None or not _CUT_OFF & set(outcome.finish_reasons):
        return run.answers
    lengths = outcome.execution.output_lengths
    return tuple(
        Decoded(answer.token_ids[:length], answer.margins[:length])
        for answer, length in zip(run.answers, lengths, strict=True)
    )


def _matches(answers: Sequence[Decoded], entry: Entry, digests: Digests) -> tuple[bool, ...]:
    values, key_id = _logged(entry).output_digests, entry.decision.request.digest_key
    if len(answers) != len(values):
        raise InvalidRequest(
            f"The request asks for {len(answers)} answers; the log has digests of {len(values)}."
        )
    return tuple(
        digests.has_tokens(Digest(value, key_id), answer.token_ids)
        for answer, value in zip(answers, values, strict=True)
    )


async def _difference(
    backend: Redecoder,
    request: ChatRequest,
    prompt: Prompt,
    entry: Entry,
    digests: Digests,
    answers: Sequence[Decoded],
) -> Comparison | None:
    """Where it begins. The log has digests alone, so the tokens must be made once more, as decided."""
    record = entry.decision
    if _logged(entry).mode is Mode.STANDARD:
        return None
    try:
        before = await _run(backend, record, request, prompt, record.decision)
    except (BackendFailed, ConfigError):
        return None
    cut = _cut(before, entry)
    if not all(_matches(cut, entry, digests)):
        return None
    return compare([answer.token_ids for answer in cut], answers)


def _is_comparable(record: DecisionRecord, logged: Execution) -> bool:
    exact = logged.mode is Mode.STANDARD or logged.verifier == "coupled"
    return exact or (logged.verifier_class == "exact" and record.sampling.temperature == 0.0)


def _first_character(texts: Sequence[str], captured: Sequence[str]) -> int | None:
    differences = map(first_difference, texts, captured)
    return next((at for at in differences if at is not None), None)


def _notes(record: DecisionRecord, logged: Execution, run: Run, prompt: Prompt) -> Iterator[str]:
    if run.execution.fingerprint != logged.fingerprint:
        yield "another model, dtype, kernel or engine decodes here than the one that answered"
    if prompt.num_tokens != record.request.prompt_tokens:
        yield (
            f"the prompt has {prompt.num_tokens} tokens here, and had {record.request.prompt_tokens}"
        )
    if not _is_comparable(record, logged):
        yield f"the verifier {logged.verifier} draws other tokens in {logged.mode} mode"
