"""`Exchange`: one request in progress, from its arrival to its outcome record.

It remembers, and holds the backend to its contract; the service decides what happens next. It must
not know of HTTP or of storage.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from gateway.audit.attestation import attest
from gateway.audit.digests import Digests
from gateway.audit.record import DecisionRecord, OutcomeRecord, RequestFacts, Timings
from gateway.backends.base import Backend, Generation, Traced
from gateway.chunk import Chunk
from gateway.errors import BackendFailed, DeadlineExceeded, GatewayError
from gateway.execution import Execution
from gateway.opinion import Review
from gateway.reply import Receipt
from gateway.types import (
    Caller,
    ChatRequest,
    Decision,
    FinishReason,
    Job,
    Prompt,
    Sampling,
    Signals,
)

_UNSENT = (FinishReason.CANCELLED, FinishReason.ERROR)
_SEEDS = 1 << 53
"""Drawn seeds stay below this, so that every JSON reader of the log keeps them exactly."""

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Exchange:
    """What is known of one request so far. ``record`` is set once it has been decided."""

    record: DecisionRecord

    def __init__(
        self,
        request: ChatRequest,
        backend_name: str,
        backend: Backend,
        prompt: Prompt,
        arrived: float,
        digests: Digests,
    ) -> None:
        self.request = request
        self.backend_name = backend_name
        self.backend = backend
        self.prompt = prompt
        self.arrived = arrived
        self._digests = digests
        self.recording: asyncio.Task[bool] | None = None
        self.generation: Generation | None = None
        self.finished: dict[int, FinishReason] = {}
        self.ending = FinishReason.ERROR
        """What became of the choices that did not finish."""
        self.error: str | None = None
        self.classify_seconds = self.decide_seconds = self.record_seconds = 0.0
        self.first_token_seconds: float | None = None
        self.seconds: float | None = None
        """How long it may take, from its arrival; None: as long as it wants to."""
        self.keeps_text = False
        """Whether to remember what each choice says."""
        self._texts: dict[int, list[str]] = {}

    @property
    def answers(self) -> tuple[str, ...]:
        """The choices' texts so far; none where they are not kept, or nothing was said."""
        if not self._texts:
            return ()
        return tuple("".join(self._texts.get(index, ())) for index in range(self.request.n))

    @property
    def outputs(self) -> Sequence[Sequence[int]]:
        """The token ids of each answer so far; none where the backend has no tokens."""
        return self.generation.outputs if isinstance(self.generation, Traced) else ()

    @property
    def receipt(self) -> Receipt:
        """What the client may be told."""
        return Receipt(
            request_id=self.record.request_id,
            decision_id=self.record.decision_id,
            created_at=self.record.created_at,
            decision=self.record.decision,
            prompt_tokens=self.prompt.num_tokens,
            fingerprint=self._fingerprint(),
        )

    def _fingerprint(self) -> str:
        model = self.request.model
        known = (m.fingerprint for m in self.backend.models if m.id == model)
        return next(known, "") or f"{self.backend_name} {model}"

    def decide(
        self,
        decision: Decision,
        signals: Signals,
        caller: Caller,
        *,
        review: Review,
        request_id: str,
        now: float,
    ) -> None:
        """Take the decision on record; ``now`` is in seconds since the epoch.

        ``review`` is whom the backend asks that has an opinion of its own.
        """
        self._review = review
        self.record = DecisionRecord(
            decision_id=new_id("dec"),
            request_id=request_id,
            created_at=now,
            caller=caller,
            request=RequestFacts.of(
                self.request, self.prompt.num_tokens, self._digests.of(self.request.body)
            ),
            signals=signals,
            decision=decision,
            sampling=_final_sampling(self.request.sampling, decision),
            backend=self.backend_name,
            traceparent=_traceparent(self.request.headers),
        )

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """Cut off what is done in here when the time is over. Raises DeadlineExceeded."""
        left = None if self.seconds is None else self.arrived + self.seconds - time.perf_counter()
        try:
            async with asyncio.timeout(left) as timer:
                yield
        except TimeoutError:
            if not timer.expired():
                raise
            raise DeadlineExceeded(
                f"The answer was not complete within {self.seconds:g} seconds."
            ) from None

    def job(self) -> Job:
        """What the backend is asked to do."""
        record = self.record
        domain = record.signals.top("domain")
        return Job(
            record.request_id,
            self.request,
            record.decision,
            record.sampling,
            self.prompt,
            caller_id=record.caller.id,
            domain=domain.value if domain is not None else "",
            review=self._review,
            decision_id=record.decision_id,
        )

    def fail(self, error: GatewayError) -> None:
        """Note why it failed, in more words than the client is told."""
        why = error.detail if isinstance(error, BackendFailed) else error.message
        self.error = f"{error.code or error.type}: {why}"

    def note(self, chunk: Chunk) -> None:
        """Follow the answer: its first text, and which choices have ended.

        Raises BackendFailed for an ending that is never sent.
        """
        if chunk.finish_reason in _UNSENT:
            raise BackendFailed(detail=f"the backend gave up: {chunk.finish_reason}")
        said = chunk.said
        if said and self.first_token_seconds is None:
            self.first_token_seconds = time.perf_counter() - self.arrived
        if self.keeps_text and said:
            self._texts.setdefault(chunk.index, []).append(said)
        if chunk.finish_reason is not None:
            self.finished[chunk.index] = chunk.finish_reason

    def check_complete(self) -> None:
        """Hold the backend to a finish reason for every choice. Raises BackendFailed."""
        if missing := self.request.n - len(self.finished):
            raise BackendFailed(detail=f"no finish reason came for {missing} of the choices")

    def executed(self) -> Execution:
        """What the backend really did, with the digests of what it emitted."""
        if self.generation is None:
            return Execution(backend=self.backend_name, model=self.request.model)
        execution, outputs = self.generation.execution, self.outputs
        if not any(outputs):
            return execution
        return msgspec.structs.replace(
            execution,
            output_digests=tuple(self._digests.of_tokens(ids).value for ids in outputs),
            output_lengths=tuple(map(len, outputs)),
        )

    def outcome(self, execution: Execution) -> OutcomeRecord:
        """The record of how it went."""
        return OutcomeRecord(
            decision_id=self.record.decision_id,
            finished_at=time.time(),
            finish_reasons=tuple(
                self.finished.get(index, self.ending) for index in range(self.request.n)
            ),
            execution=execution,
            timings=Timings(
                classify=self.classify_seconds,
                decide=self.decide_seconds,
                record=self.record_seconds,
                first_token=self.first_token_seconds,
                total=time.perf_counter() - self.arrived,
            ),
            attestation=attest(self.record, execution),
            error=self.error,
        )


def new_id(kind: str) -> str:
    """An id that sorts by time: milliseconds, then 80 random bits."""
    return f"{kind}_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def _traceparent(headers: Mapping[str, str]) -> str | None:
    """The trace that the request belongs to, by W3C's Trace Context; None for a wrong or no header."""
    given = headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None


def _final_sampling(sampling: Sampling, decision: Decision) -> Sampling:
    """The request's sampling within the rule's limits, with a seed to replay it by."""
    limits = decision.limits
    lengths = [n for n in (sampling.max_tokens, limits.max_tokens) if n is not None]
    temperature = sampling.temperature if limits.temperature is None else limits.temperature
    if limits.max_temperature is not None:
        temperature = min(temperature, limits.max_temperature)
    return msgspec.structs.replace(
        sampling,
        temperature=temperature,
        max_tokens=min(lengths, default=None),
        seed=secrets.randbelow(_SEEDS) if sampling.seed is None else sampling.seed,
    )
