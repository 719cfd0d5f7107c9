"""What the outside sees of a request once it is over: one log line, and metrics.

Both are fed from the two records of the request; there is no second bookkeeping. No prompt or
answer text comes here. Knows nothing of HTTP or storage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.attributes import attributes, number, short
from gateway.audit.record import DecisionRecord, OutcomeRecord, Shadow
from gateway.classification.drift import ScoreWindow
from gateway.log import Log, build_log
from gateway.types import DOMAINS, FinishReason

_OTHER = "other"
_SEVERITY = (
    FinishReason.ERROR,
    FinishReason.CANCELLED,
    FinishReason.CONTENT_FILTER,
    FinishReason.LENGTH,
    FinishReason.TOOL_CALLS,
    FinishReason.STOP,
)
_FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Exporter(Protocol):
    """Sends what is known of finished requests somewhere else."""

    def export(self, decision: DecisionRecord, outcome: OutcomeRecord) -> None:
        """Take a finished request over. Returns at once, and never raises."""
        ...


class Telemetry:
    """The log line and the metrics of one gateway; two in one process share nothing.

    Only the ``models`` named here become labels: a client may ask for a model of any name.
    """

    def __init__(
        self,
        models: Iterable[str] = (),
        *,
        log: Log | None = None,
        drift: ScoreWindow | None = None,
        exporter: Exporter | None = None,
    ) -> None:
        self._log = log or build_log()
        self._exporter = exporter
        self._models = frozenset(models)
        self._rule = _Bounded(256)
        self._source = _Bounded(32)
        self._model = _Bounded(256)
        self._tightener = _Bounded(8)
        self._registry = registry = CollectorRegistry()
        served = ("mode", "model")
        self._requests = Counter(
            "draftgate_requests_total",
            "Requests, by the mode that ran (none when nothing did) and how they ended.",
            (*served, "domain", "outcome"),
            registry=registry,
        )
        self._decisions = Counter(
            "draftgate_decisions_total",
            "Decisions, by the rule that made them and the mode they chose.",
            ("rule", "mode"),
            registry=registry,
        )
        self._tokens = Counter(
            "draftgate_tokens_total", "Tokens.", (*served, "kind"), registry=registry
        )
        self._draft_tokens = Counter(
            "draftgate_draft_tokens_total",
            "Draft tokens, proposed and accepted; the ratio is the acceptance rate.",
            ("source", "result"),
            registry=registry,
        )
        self._first_token = Histogram(
            "draftgate_ttft_seconds",
            "From arrival to the first text.",
            served,
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self._duration = Histogram(
            "draftgate_request_seconds",
            "From arrival to the end.",
            served,
            buckets=_REQUEST_BUCKETS,
            registry=registry,
        )
        self._attestation_failed = Counter(
            "draftgate_attestation_failed_total",
            "Requests in which something ran that was not decided. Alarm on any.",
            registry=registry,
        )
        self._tightened = Counter(
            "draftgate_tightened_total",
            "Requests that a backend decoded in standard mode against the decision, and why.",
            ("by", "domain"),
            registry=registry,
        )
        self._audit_failures = Counter(
            "draftgate_audit_failures_total",
            "Records that could not be made durable.",
            ("record",),
            registry=registry,
        )
        self._shadow_runs = Counter(
            "draftgate_shadow_runs_total",
            "Answers that were decoded again in standard mode: the same tokens, others, or given up.",
            ("result",),
            registry=registry,
        )
        self._policy = Gauge(
            "draftgate_policy_info", "The policy in force.", ("name", "hash"), registry=registry
        )
        self._reload_failed = Gauge(
            "draftgate_policy_reload_failed",
            "1 while the policy's files hold something that is not fit to come into force.",
            registry=registry,
        )
        self._reloads = Counter(
            "draftgate_policy_reloads_total",
            "Attempts to bring another policy into force.",
            ("result",),
            registry=registry,
        )
        self._drift = drift
        self._scores_moved = Gauge(
            "draftgate_classifier_drift",
            "Population stability index of the last scores against the classifier's contract.",
            ("domain",),
            registry=registry,
        )
        for result in ("ok", "failed"):
            self._reloads.labels(result)
        for record in ("decision", "outcome", "text", "shadow"):
            # An alert on a rise needs the zero before it.
            self._audit_failures.labels(record)
        for result in ("equal", "different", "dropped"):
            self._shadow_runs.labels(result)

    @property
    def registry(self) -> CollectorRegistry:
        """Where others may register metrics of theirs, to be rendered with these."""
        return self._registry

    def observe(self, decision: DecisionRecord, outcome: OutcomeRecord) -> None:
        """Count a finished request and write its log line."""
        self._count(decision, outcome)
        level = logging.INFO
        if outcome.attestation == "attestation_failed":
            level = logging.ERROR
        elif outcome.error is not None and decision.decision.deny is None:
            level = logging.WARNING
        if self._exporter is not None:
            self._exporter.export(decision, outcome)
        self._log.log(level, "request", **attributes(decision, outcome), error=short(outcome.error))

    def audit_failed(self, record: str) -> None:
        """Count a ``decision``, ``outcome``, ``text`` or ``shadow`` that could not be made durable."""
        self._audit_failures.labels(record).inc()

    def shadowed(self, shadow: Shadow) -> None:
        """Count a shadow run; one with other tokens is a warning in the log too."""
        self._shadow_runs.labels(shadow.result).inc()
        if shadow.result == "different":
            self._log.warning(
                "shadow_run_different",
                decision_id=shadow.decision_id,
                position=shadow.position,
                margin=number(shadow.margin),
            )

    def set_policy(self, name: str, policy_hash: str) -> None:
        """Say which policy is in force."""
        self._policy.clear()
        self._policy.labels(name, policy_hash).set(1)

    def policy_reloaded(self, ok: bool) -> None:
        """Count an attempt to bring another policy into force."""
        self._reloads.labels("ok" if ok else "failed").inc()
        self._reload_failed.set(not ok)

    def render(self) -> bytes:
        """The metrics in Prometheus' text format, version 0.0.4."""
        for domain, index in (self._drift.psi() if self._drift is not None else {}).items():
            self._scores_moved.labels(domain).set(index)
        return generate_latest(self._registry)

    def _count(self, decision: DecisionRecord, outcome: OutcomeRecord) -> None:
        if self._drift is not None:
            self._drift.add(decision.signals)
        execution = outcome.execution
        mode = execution.mode.value if execution.mode is not None else "none"
        asked = decision.request.model
        model = self._model(asked) if asked in self._models else _OTHER
        domain = _domain(decision)
        ending = _ending(decision, outcome)
        self._requests.labels(mode, model, domain, ending).inc()
        self._decisions.labels(
            self._rule(decision.decision.rule), decision.decision.mode.value
        ).inc()
        self._tokens.labels(mode, model, "prompt").inc(execution.usage.prompt_tokens)
        self._tokens.labels(mode, model, "completion").inc(execution.usage.completion_tokens)
        for name, (proposed, accepted) in execution.drafts_by_source.items():
            source = self._source(name)
            self._draft_tokens.labels(source, "proposed").inc(proposed)
            self._draft_tokens.labels(source, "accepted").inc(accepted)
        if outcome.timings.first_token is not None:
            self._first_token.labels(mode, model).observe(outcome.timings.first_token)
        self._duration.labels(mode, model).observe(outcome.timings.total)
        if execution.tightened_by is not None:
            self._tightened.labels(self._tightener(execution.tightened_by), domain).inc()
        if outcome.attestation == "attestation_failed":
            self._attestation_failed.inc()


class _Bounded:
    """The first ``limit`` values of a label as they are, all later ones as ``other``.

    For names that an operator gives: there are few of them, but nothing else says how few.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        if value not in self._seen:
            if len(self._seen) >= self._limit:
                return _OTHER
            self._seen.add(value)
        return value


def _domain(decision: DecisionRecord) -> str:
    top = decision.signals.top("domain")
    if top is None:
        return "none"
    return top.value if top.value in DOMAINS else _OTHER


def _ending(decision: DecisionRecord, outcome: OutcomeRecord) -> str:
    """How a request ended, in one word: the worst that became of any of its choices."""
    if decision.decision.deny is not None:
        return "denied"
    if outcome.interrupted:
        return "interrupted"
    worst = (reason for reason in _SEVERITY if reason in outcome.finish_reasons)
    return next(worst, FinishReason.ERROR).value
