"""`OtlpExporter`: finished requests as OpenTelemetry traces and log records, over HTTP.

Made from the records once a request is over; nothing is measured twice, and no text is sent. Sending
happens on threads of the library's own, from queues of fixed length: a collector that is slow or away
costs what is in them, and never a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.attributes import attributes
from gateway.audit.record import DecisionRecord, OutcomeRecord
from gateway.errors import ConfigError, Problem
from gateway.log import Log, build_log

try:
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ConfigError(
        [
            Problem(
                "OTLP needs the OpenTelemetry SDK, which is not installed",
                path="telemetry.otlp.endpoint",
                hint="pip install 'draftgate[otlp]', or leave the endpoint out",
            )
        ]
    ) from error

QUEUE = 2048
"""Spans, and log records, that wait to be sent; what comes on top pushes out the oldest."""
_BATCH = 512
_PROPAGATOR = TraceContextTextMapPropagator()
_SECOND = 1_000_000_000
_SHARED = ("gen_ai.", "error.")
"""Names of OpenTelemetry's own; ours get a prefix among them."""


class Settings(NamedTuple):
    """Where to send what, and under which name."""

    endpoint: str
    """The collector's address, without the path of a signal."""
    headers: Mapping[str, str]
    service_name: str
    timeout_seconds: float
    delay_seconds: float
    """The longest that something waits for company before it is sent."""


class OtlpExporter:
    """Traces and log records of one gateway; the process's own OpenTelemetry settings stay alone."""

    def __init__(self, settings: Settings, *, log: Log | None = None) -> None:
        self._log = log or build_log()
        resource = Resource.create({"service.name": settings.service_name})
        base, timeout = settings.endpoint.rstrip("/"), settings.timeout_seconds
        delay, headers = settings.delay_seconds * 1000, dict(settings.headers)
        self._traces = TracerProvider(
            resource=resource, sampler=ParentBased(ALWAYS_ON), shutdown_on_exit=False
        )
        self._traces.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(f"{base}/v1/traces", headers=headers, timeout=timeout),
                max_queue_size=QUEUE,
                schedule_delay_millis=delay,
                max_export_batch_size=_BATCH,
                export_timeout_millis=timeout * 1000,
            )
        )
        self._logs = LoggerProvider(resource=resource, shutdown_on_exit=False)
        self._logs.add_log_record_processor(
            BatchLogRecordProcessor(
                OTLPLogExporter(f"{base}/v1/logs", headers=headers, timeout=timeout),
                max_queue_size=QUEUE,
                schedule_delay_millis=delay,
                max_export_batch_size=_BATCH,
                export_timeout_millis=timeout * 1000,
            )
        )
        self._tracer = self._traces.get_tracer("draftgate")
        self._logger = self._logs.get_logger("draftgate")

    def export(self, decision: DecisionRecord, outcome: OutcomeRecord) -> None:
        """See `gateway.telemetry.Exporter`."""
        try:
            said = _named(decision, outcome)
            root = _trace(self._tracer, decision, outcome, said)
            self._logger.emit(_record(outcome, said, set_span_in_context(root, Context())))
        except Exception:  # noqa: BLE001 - somebody else's code must not cost a request its answer
            self._log.exception("otlp_not_exported", decision_id=decision.decision_id)

    async def aclose(self) -> None:
        """Send what waits, as far as the collector takes it within the timeout of one request."""
        # Beside each other: together they may take as long as one.
        await asyncio.gather(
            asyncio.to_thread(self._traces.shutdown), asyncio.to_thread(self._logs.shutdown)
        )


def _named(decision: DecisionRecord, outcome: OutcomeRecord) -> dict[str, Any]:
    return {
        name if name.startswith(_SHARED) else f"draftgate.{name}": value
        for name, value in attributes(decision, outcome).items()
        if value is not None
    }


def _trace(
    tracer: Tracer, decision: DecisionRecord, outcome: OutcomeRecord, said: Mapping[str, Any]
) -> Span:
    """The span of the request, with one for each step below it; all have ended."""
    carrier = {"traceparent": decision.traceparent} if decision.traceparent else {}
    end = int(outcome.finished_at * _SECOND)
    start = end - int(outcome.timings.total * _SECOND)
    root = tracer.start_span(
        f"{said['gen_ai.operation.name']} {said['gen_ai.request.model']}",
        # Apart from whatever the thread is in: it is not what the request came with.
        context=_PROPAGATOR.extract(carrier, Context()),
        kind=SpanKind.SERVER,
        attributes=said,
        start_time=start,
    )
    if outcome.error is not None:
        root.set_status(Status(StatusCode.ERROR))
    within = set_span_in_context(root, Context())
    for name, begins, ends in _steps(outcome, start, end):
        tracer.start_span(name, context=within, start_time=begins).end(end_time=ends)
    root.end(end_time=end)
    return root


def _steps(outcome: OutcomeRecord, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Name, beginning and end of each, in nanoseconds since the epoch; one follows the other."""
    timings, at = outcome.timings, start
    for name, seconds in (
        ("classify", timings.classify),
        ("decide", timings.decide),
        ("record", timings.record),
    ):
        until = min(end, at + int(seconds * _SECOND))
        yield name, at, until
        at = until
    if outcome.execution.mode is not None:
        yield "generate", at, end


def _record(outcome: OutcomeRecord, said: Mapping[str, Any], context: Context) -> LogRecord:
    severity = SeverityNumber.INFO
    if outcome.attestation == "attestation_failed":
        severity = SeverityNumber.ERROR
    elif outcome.error is not None:
        severity = SeverityNumber.WARN
    return LogRecord(
        timestamp=int(outcome.finished_at * _SECOND),
        context=context,
        severity_number=severity,
        severity_text=severity.name,
        event_name="draftgate.request",
        body="request",
        attributes=said,
    )
