"""The exporter against a collector that reads what really comes over the wire."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from gateway.attributes import attributes
from gateway.config import GatewayConfig, OtlpConfig, TelemetryConfig
from gateway.errors import ConfigError
from gateway.execution import Execution
from gateway.otlp import QUEUE, OtlpExporter, Settings
from gateway.runtime import running
from tests.live import LiveServer
from tests.records import decision_record, outcome_record

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector:
    """Takes OTLP over HTTP, and decodes it."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Any] = []
        self.logs: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.resources: list[dict[str, str]] = []
        self.raw = b""
        self.hold = threading.Event()
        self.hold.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.hold.wait(30)
                collector.take(self.path, body, dict(self.headers))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.raw += body
        self.headers.append({name.lower(): value for name, value in headers.items()})
        if path == "/v1/traces":
            for traced in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(_plain(traced.resource.attributes))
                self.spans += [span for scope in traced.scope_spans for span in scope.spans]
        elif path == "/v1/logs":
            for logged in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.logs += [log for scope in logged.scope_logs for log in scope.log_records]

    def span(self, name: str) -> Any:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def stop(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()


def _plain(pairs: Any) -> dict[str, Any]:
    return {
        pair.key: [v.string_value for v in pair.value.array_value.values]
        if (kind := pair.value.WhichOneof("value")) == "array_value"
        else getattr(pair.value, kind)
        for pair in pairs
    }


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.stop()


def _exporter(url: str, *, timeout: float = 5.0) -> OtlpExporter:
    return OtlpExporter(Settings(url, {"x-token": "secret"}, "front", timeout, 60.0))


async def test_a_request_is_one_trace_with_a_span_for_each_step(collector: Collector) -> None:
    exporter = _exporter(collector.url)
    exporter.export(decision_record(), outcome_record())
    await exporter.aclose()

    root = collector.span("chat small")
    steps = [collector.span(name) for name in ("classify", "decide", "record", "generate")]
    assert len(collector.spans) == 5
    assert {span.trace_id for span in steps} == {root.trace_id}
    assert {span.parent_span_id for span in steps} == {root.span_id}
    assert root.parent_span_id == b""
    # The timings of the record, one step after the other, and nothing measured anew.
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (
        1000_600_000_000,
        10**12 + 10**9,
    )
    lengths = [span.end_time_unix_nano - span.start_time_unix_nano for span in steps]
    assert lengths == [1_000_000, 0, 2_000_000, 397_000_000]
    assert steps[0].start_time_unix_nano == root.start_time_unix_nano
    assert steps[-1].end_time_unix_nano == root.end_time_unix_nano
    assert all("x-token" in headers for headers in collector.headers)
    assert collector.resources[0]["service.name"] == "front"


async def test_span_and_log_record_say_what_the_log_line_says(collector: Collector) -> None:
    exporter = _exporter(collector.url)
    exporter.export(decision_record(), outcome_record())
    await exporter.aclose()

    root, (log,) = collector.span("chat small"), collector.logs
    said = _plain(root.attributes)
    wanted = attributes(decision_record(), outcome_record())
    assert said == _plain(log.attributes)
    assert said["gen_ai.request.model"] == "small"
    assert said["gen_ai.usage.output_tokens"] == 20
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    assert said["draftgate.mode_executed"] == "speculative"
    assert {name.removeprefix("draftgate.") for name in said} == {
        name for name, value in wanted.items() if value is not None
    }
    assert (log.trace_id, log.span_id) == (root.trace_id, root.span_id)
    assert (log.severity_text, log.body.string_value) == ("INFO", "request")


def test_the_names_that_look_like_the_convention_are_of_it() -> None:
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    ours = {name for name in attributes(decision_record(), outcome_record()) if "gen_ai" in name}
    assert len(ours) >= 12
    assert ours <= known


async def test_the_trace_goes_on_from_the_one_the_request_came_with(collector: Collector) -> None:
    exporter = _exporter(collector.url)
    exporter.export(decision_record(traceparent=TRACEPARENT), outcome_record())
    # What the caller does not sample is not sent as a trace either.
    unsampled = f"{TRACEPARENT[:-2]}00"
    exporter.export(decision_record(1, traceparent=unsampled), outcome_record(1))
    await exporter.aclose()
    root = collector.span("chat small")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert [log.trace_id.hex() for log in collector.logs] == [TRACE, TRACE]


async def test_a_failure_is_one_by_its_code_and_in_no_words(collector: Collector) -> None:
    exporter = _exporter(collector.url)
    failed = outcome_record(
        error="internal_error: the prompt was 'my secret'", execution=Execution()
    )
    exporter.export(decision_record(), failed)
    exporter.export(decision_record(1), outcome_record(1, attestation="attestation_failed"))
    await exporter.aclose()
    assert b"secret'" not in collector.raw
    first, second = (span for span in collector.spans if span.name == "chat small")
    assert _plain(first.attributes)["error.type"] == "internal_error"
    assert (first.status.code, second.status.code) == (2, 0)
    assert sum(span.name == "generate" for span in collector.spans) == 1
    assert [log.severity_text for log in collector.logs] == ["WARN", "ERROR"]


async def test_more_than_fits_while_the_collector_is_slow_is_dropped_and_never_waits() -> None:
    collector = Collector()
    collector.hold.clear()
    exporter = _exporter(collector.url, timeout=0.2)
    try:
        for number in range(QUEUE):
            exporter.export(decision_record(number), outcome_record(number))
        # Five spans a request: the collector answers nothing, and all of this has returned.
        assert collector.spans == []
    finally:
        collector.hold.set()
        await exporter.aclose()
        collector.stop()
    assert len(collector.spans) < 5 * QUEUE


@pytest.mark.parametrize("traceparent", ["", "x", "\0", "00-" + "0" * 32 + f"-{PARENT}-01"])
async def test_what_cannot_be_sent_costs_nobody_anything(
    traceparent: str, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = _exporter(collector.url)
    odd = msgspec.structs.replace(decision_record().request, model="\ud800", endpoint="?")
    exporter.export(decision_record(request=odd, traceparent=traceparent), outcome_record())
    exporter.export(decision_record(1), outcome_record(1))
    await exporter.aclose()


def _config(make_config: Callable[..., GatewayConfig], url: str, **otlp: Any) -> GatewayConfig:
    section = OtlpConfig(endpoint=url, timeout_seconds=0.5, **otlp)
    return make_config(telemetry=TelemetryConfig(section))


PROMPT = "how much of a rare secret word"


def _ask(server: LiveServer, **headers: str) -> Any:
    return server.post(
        {"model": "scripted", "messages": [{"role": "user", "content": PROMPT}]}, **headers
    )


def test_a_served_request_reaches_the_collector_with_its_parent_and_without_its_text(
    make_config: Callable[..., GatewayConfig],
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLLECTOR_TOKEN", "t0ken")
    config = _config(make_config, collector.url, headers={"x-token": "COLLECTOR_TOKEN"})
    with LiveServer(config) as server:
        answer = _ask(server, traceparent=TRACEPARENT)
        assert answer.status_code == 200
        entry = server.entry(answer.headers["x-draftgate-decision-id"])
        assert entry.decision.traceparent == TRACEPARENT
        other = _ask(server, traceparent="00-nonsense")
        assert server.entry(other.headers["x-draftgate-decision-id"]).decision.traceparent is None
    root = next(span for span in collector.spans if span.parent_span_id.hex() == PARENT)
    assert root.trace_id.hex() == TRACE
    assert _plain(root.attributes)["draftgate.decision_id"] == entry.decision.decision_id
    assert {headers["x-token"] for headers in collector.headers} == {"t0ken"}
    assert b"secret" not in collector.raw
    assert b"The answer is short" not in collector.raw


def test_a_collector_that_is_away_or_fails_costs_no_request(
    make_config: Callable[..., GatewayConfig],
) -> None:
    broken = Collector(status=500)
    gone = Collector()
    gone.stop()
    for collector in (broken, gone):
        with LiveServer(_config(make_config, collector.url)) as server:
            assert _ask(server).status_code == 200
    broken.stop()


async def test_a_header_without_its_variable_stops_the_start(
    make_config: Callable[..., GatewayConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLLECTOR_TOKEN", raising=False)
    config = _config(make_config, "http://127.0.0.1:1", headers={"x": "COLLECTOR_TOKEN"})
    with pytest.raises(ConfigError, match="no COLLECTOR_TOKEN"):
        async with running(config):
            pass


async def test_an_endpoint_without_the_library_is_an_error_that_says_what_to_install(
    make_config: Callable[..., GatewayConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gateway.otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry._logs", None)
    with pytest.raises(ConfigError, match=r"pip install 'draftgate\[otlp\]'"):
        async with running(_config(make_config, "http://127.0.0.1:1")):
            pass
