"""`Gateway`: the only code that knows in which order a request is classified, decided, answered.

It knows nothing of HTTP, and holds no configuration: it is handed the objects that it works with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from gateway.assurance import Assured, Guarantee
from gateway.audit.base import AuditLog
from gateway.audit.digests import Digests
from gateway.audit.record import OutcomeRecord
from gateway.backends.base import Backend, Redecoder
from gateway.capture import Capture
from gateway.classification.base import Classifier, classify
from gateway.errors import (
    AuditUnavailable,
    BackendFailed,
    GatewayError,
    ModelNotFound,
    PolicyDenied,
    Unavailable,
    cut,
)
from gateway.evidence.base import Evidence, NoEvidence
from gateway.exchange import Exchange, new_id
from gateway.execution import Execution
from gateway.log import Log, build_log
from gateway.reply import Emit, Reply
from gateway.routing.active import ActivePolicy
from gateway.routing.decide import decide
from gateway.routing.policy import Policy
from gateway.routing.review import review
from gateway.shadows import Shadows
from gateway.status import GatewayStatus, Verdict
from gateway.telemetry import Telemetry
from gateway.types import Caller, ChatRequest, FinishReason, ModelInfo

T = TypeVar("T")


class Gateway:
    """Answers requests: classify, decide, record, generate, record."""

    def __init__(
        self,
        *,
        backends: Mapping[str, Backend],
        policy: ActivePolicy,
        classifiers: Mapping[str, Classifier],
        audit: AuditLog,
        telemetry: Telemetry,
        log: Log | None = None,
        audit_required: bool = True,
        classifier_timeout_seconds: float = 2.0,
        assured: Assured | None = None,
        digests: Digests | None = None,
        capture: Capture | None = None,
        shadows: Shadows | None = None,
        evidence: Evidence | None = None,
        request_seconds: float | None = None,
        spend: Callable[[str, int], None] | None = None,
    ) -> None:
        """Without ``capture`` no text is kept, without ``shadows`` nothing is decoded again.

        ``request_seconds``: how long a request may take; None: as long as it wants to.
        ``spend`` is told, when a request has ended, whose it was and how many tokens it took.
        """
        self._backends = backends
        self._policy = policy
        self._classifiers = classifiers
        self._audit = audit
        self._audit_required = audit_required
        self._classifier_timeout = classifier_timeout_seconds
        self._assured = assured or Assured()
        self._digests = digests or Digests()
        self._capture = capture
        self._shadows = shadows
        self._evidence = evidence or NoEvidence()
        self._telemetry = telemetry
        self._log = log or build_log()
        self._replies: set[Reply] = set()
        self._settling: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._request_seconds = request_seconds
        self._spend = spend or (lambda caller_id, tokens: None)

    @property
    def telemetry(self) -> Telemetry:
        """The metrics of this gateway."""
        return self._telemetry

    def models(self) -> tuple[ModelInfo, ...]:
        """Every model served, once each, in the order of the backends."""
        found: dict[str, ModelInfo] = {}
        for backend in self._backends.values():
            for model in backend.models:
                found.setdefault(model.id, model)
        return tuple(found.values())

    def status(self) -> GatewayStatus:
        """Whether requests can be answered now."""
        backends = {name: backend.status for name, backend in self._backends.items()}
        return GatewayStatus(
            ready=not self._closing and all(status.ready for status in backends.values()),
            policy=self._policy.current.name,
            policy_hash=self._policy.current.hash,
            warnings=(
                *self._policy.warnings(datetime.now(UTC).date()),
                *self._assured.warnings(self._policy.current),
                *self._evidence.warnings(),
                *(warning for status in backends.values() for warning in status.warnings),
            ),
            backends=backends,
        )

    def guarantees(self, policy: Policy) -> tuple[Guarantee, ...]:
        """What is known of each ban of a policy."""
        return self._assured.guarantees(policy)

    async def respond(
        self,
        request: ChatRequest,
        caller: Caller,
        *,
        request_id: str | None = None,
        patience: float | None = None,
        timeout_seconds: float | None = None,
    ) -> Reply:
        """Start answering; returns when the first chunk is there, or ``patience`` seconds are over.

        After ``timeout_seconds``, or what the gateway allows where that is less, the answer is cut
        off with DeadlineExceeded.

        Raises a GatewayError for everything that goes wrong before it; its ``receipt`` is set when
        the request had been decided. Cancelling this call cancels the answer.
        """
        arrived = time.perf_counter()
        self._refuse_when_closing()
        name, backend = self._find(request.model)
        prompt = await backend.prepare(request)
        exchange = Exchange(request, name, backend, prompt, arrived, self._digests)
        exchange.seconds = min(
            (s for s in (timeout_seconds, self._request_seconds) if s is not None), default=None
        )
        policy = self._policy.current
        verdict = await self._decide(exchange, caller, policy)
        exchange.decide(
            verdict.decision,
            verdict.signals,
            caller,
            review=partial(
                review,
                policy,
                verdict.signals,
                request,
                caller,
                verdict.decision,
                prompt_tokens=exchange.prompt.num_tokens,
                now=verdict.now,
            ),
            request_id=request_id or new_id("req"),
            now=verdict.now.timestamp(),
        )
        if self._capture is not None:
            exchange.keeps_text = self._capture.wants(verdict.decision)
        self._refuse_when_closing()
        reply = Reply(exchange.receipt, partial(self._produce, exchange))
        self._replies.add(reply)
        reply.when_done(lambda: self._replies.discard(reply))
        try:
            await reply.prime(patience)
        except GatewayError as error:
            if not isinstance(error, AuditUnavailable):
                error.receipt = exchange.receipt
            raise
        except BaseException:
            reply.cancel()
            raise
        return reply

    async def explain(
        self, request: ChatRequest, caller: Caller, policy: Policy | None = None
    ) -> Verdict:
        """What `respond` would decide, by ``policy`` where it is given; nothing is recorded or run.

        Raises a GatewayError for what `respond` would refuse before it decides.
        """
        self._refuse_when_closing()
        name, backend = self._find(request.model)
        prompt = await backend.prepare(request)
        exchange = Exchange(request, name, backend, prompt, time.perf_counter(), self._digests)
        return await self._decide(exchange, caller, policy or self._policy.current)

    def drain(self) -> None:
        """Refuse new requests, and be not ready; what runs goes on. Returns at once."""
        self._closing = True

    async def drained(self) -> None:
        """Return when nothing runs any more."""
        while self._replies:
            await asyncio.wait([asyncio.create_task(reply.wait()) for reply in self._replies])

    def stop(self) -> None:
        """Refuse new requests and cancel what runs; their clients are told. Returns at once."""
        self.drain()
        for reply in self._replies:
            reply.cancel()

    async def aclose(self) -> None:
        """Cancel what runs, wait until its outcomes are written, then close backends and log."""
        self.stop()
        if self._shadows is not None:
            await self._shadows.aclose()
        for reply in tuple(self._replies):
            await reply.wait()
        while self._settling:
            await asyncio.wait(tuple(self._settling))
        if self._shadows is not None:
            # What was offered meanwhile is dropped, on record.
            await self._shadows.aclose()
        for backend in self._backends.values():
            await backend.aclose()
        await self._audit.aclose()

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise Unavailable("The gateway is shutting down.", retry_after=5)

    def _find(self, model: str) -> tuple[str, Backend]:
        for name, backend in self._backends.items():
            if _serves(backend, model):
                return name, backend
        known = ", ".join(model.id for model in self.models())
        message = f"The model {cut(model)!r} does not exist; known: {known}."
        raise ModelNotFound(message, param="model")

    async def _decide(self, exchange: Exchange, caller: Caller, policy: Policy) -> Verdict:
        """Classify and decide. The policy is read once: a request keeps the one that it met."""
        request, started = exchange.request, time.perf_counter()
        signals = await classify(
            request, self._classifiers, timeout_seconds=self._classifier_timeout
        )
        exchange.classify_seconds = time.perf_counter() - started
        now, demotions = datetime.now(UTC), self._evidence.demotions
        for _ in self._backends:
            started, count = time.perf_counter(), exchange.prompt.num_tokens
            decision = decide(
                policy,
                signals,
                request,
                caller,
                prompt_tokens=count,
                now=now,
                demotions=demotions,
            )
            exchange.decide_seconds += time.perf_counter() - started
            if decision.backend is None or decision.backend == exchange.backend_name:
                return Verdict(decision, signals, now)
            # Decided afresh there: it may count the prompt differently, and the policy must have
            # seen the count of the backend that answers.
            await self._move(exchange, decision.backend)
        raise Unavailable("The policy sends this request round in a circle of backends.")

    async def _move(self, exchange: Exchange, name: str) -> None:
        """Follow a rule that names another backend than the one found by the model."""
        backend = self._backends.get(name)
        if backend is None or not _serves(backend, exchange.request.model):
            raise Unavailable(
                f"The policy sends this request to the backend {name!r}, which does not serve "
                f"the model {exchange.request.model!r}."
            )
        exchange.backend_name, exchange.backend = name, backend
        exchange.prompt = await backend.prepare(exchange.request)

    async def _produce(self, exchange: Exchange, emit: Emit) -> None:
        """Produce one reply; whatever happens, its outcome is settled in a task of its own."""
        try:
            async with exchange.deadline():
                await self._generate(exchange, emit)
        except asyncio.CancelledError:
            exchange.ending = FinishReason.CANCELLED
            raise
        except GatewayError as error:
            exchange.fail(error)
            raise
        except Exception as error:
            self._log.exception("backend_failed", decision_id=exchange.record.decision_id)
            failed = BackendFailed(detail=f"{type(error).__name__}: {error}")
            exchange.fail(failed)
            raise failed from error
        finally:
            await asyncio.shield(self._spawn(self._settle(exchange)))

    async def _generate(self, exchange: Exchange, emit: Emit) -> None:
        await self._record_decision(exchange)
        decision = exchange.record.decision
        if decision.deny is not None:
            raise PolicyDenied(decision.deny)
        generation = await exchange.backend.generate(exchange.job())
        exchange.generation = generation
        while (chunk := await anext(generation, None)) is not None:
            exchange.note(chunk)
            await emit(chunk)
        exchange.check_complete()

    async def _record_decision(self, exchange: Exchange) -> None:
        # In a task of its own: when this one is cancelled, it must still be known what is stored.
        exchange.recording = self._spawn(self._append_decision(exchange))
        await asyncio.shield(exchange.recording)

    async def _append_decision(self, exchange: Exchange) -> bool:
        started = time.perf_counter()
        try:
            await self._audit.append_decision(exchange.record)
        except AuditUnavailable as error:
            decision_id = exchange.record.decision_id
            self._telemetry.audit_failed("decision")
            self._log.error("decision_not_recorded", decision_id=decision_id, error=error.message)
            if self._audit_required:
                raise
            return False
        finally:
            exchange.record_seconds = time.perf_counter() - started
        return True

    async def _settle(self, exchange: Exchange) -> None:
        """End the generation and write the outcome. Never raises: nobody is left to hear it."""
        try:
            recorded = exchange.recording is not None and await exchange.recording
        except AuditUnavailable:
            return
        try:
            execution = await self._end(exchange)
            self._spend(exchange.record.caller.id, execution.usage.total_tokens)
            outcome = exchange.outcome(execution)
            self._telemetry.observe(exchange.record, outcome)
            if recorded:
                await self._append_outcome(outcome)
                self._follow_up(exchange, outcome)
        except Exception:  # noqa: BLE001 - logged: the request is over and nobody awaits this
            self._log.exception("outcome_lost", decision_id=exchange.record.decision_id)

    async def _append_outcome(self, outcome: OutcomeRecord) -> None:
        try:
            await self._audit.append_outcome(outcome)
        except AuditUnavailable as error:
            self._telemetry.audit_failed("outcome")
            self._log.error(
                "outcome_not_recorded", decision_id=outcome.decision_id, error=error.message
            )
            return
        self._evidence.notice()

    async def _end(self, exchange: Exchange) -> Execution:
        try:
            if exchange.generation is not None:
                await exchange.generation.aclose()
        except Exception:  # noqa: BLE001 - logged: the outcome must be written all the same
            self._log.exception("not_closed", decision_id=exchange.record.decision_id)
        return exchange.executed()

    def _follow_up(self, exchange: Exchange, outcome: OutcomeRecord) -> None:
        """What is still to do once the request is over; nobody waits for it."""
        if exchange.keeps_text:
            self._spawn(self._keep_text(exchange))
        record, backend = exchange.record, exchange.backend
        is_whole = outcome.error is None and FinishReason.CANCELLED not in outcome.finish_reasons
        if self._shadows is None or not is_whole or not isinstance(backend, Redecoder):
            return
        if self._shadows.wants(record, outcome.execution):
            self._shadows.offer(record, backend, exchange.job(), exchange.outputs)

    async def _keep_text(self, exchange: Exchange) -> None:
        decision_id = exchange.record.decision_id
        try:
            assert self._capture is not None  # noqa: S101 - else no text is kept
            await self._capture.keep(decision_id, exchange.request.body, exchange.answers)
        except AuditUnavailable as error:
            self._telemetry.audit_failed("text")
            self._log.error("text_not_recorded", decision_id=decision_id, error=error.message)
        except Exception:  # noqa: BLE001 - logged: the request is over and nobody awaits this
            self._log.exception("text_lost", decision_id=decision_id)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task


def _serves(backend: Backend, model: str) -> bool:
    return any(known.id == model for known in backend.models)
