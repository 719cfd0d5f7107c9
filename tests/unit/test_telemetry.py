from __future__ import annotations

import json
import math

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.audit.record import DecisionRecord, OutcomeRecord, Timings
from gateway.execution import Execution
from gateway.log import build_log
from gateway.telemetry import Telemetry
from gateway.types import Caller, FinishReason, Mode, Signal, Signals, Usage
from tests.records import decided, decision_record, outcome_record

HOSTILE = 'a\r\n{"event": "forged"}\u2028\u2029\x85\x1b[2J\x9b31m\0\ud800 "quoted" \\'


def _samples(telemetry: Telemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(telemetry.render().decode())
        for sample in family.samples
    }


def _value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return _samples(telemetry).get((name, tuple(sorted(labels.items()))))


def _label_values(telemetry: Telemetry) -> set[str]:
    return {value for _, labels in _samples(telemetry) for _, value in labels}


def _line(
    capsys: pytest.CaptureFixture[str], decision: DecisionRecord, outcome: OutcomeRecord
) -> dict[str, object]:
    Telemetry(log=build_log()).observe(decision, outcome)
    (line,) = capsys.readouterr().out.splitlines()
    parsed: dict[str, object] = json.loads(line)
    return parsed


def test_a_request_is_one_line_with_what_was_decided_and_what_ran(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = _line(capsys, decision_record(), outcome_record())
    expected = {
        "event": "request",
        "level": "info",
        "decision_id": "dec_000000",
        "request_id": "req_000000",
        "caller": "ada",
        "team": "tools",
        "gen_ai.request.model": "small",
        "domain": "code",
        "domain_score": 0.93,
        "rule": "code",
        "mode_decided": "speculative",
        "mode_executed": "speculative",
        "verifier": "coupled",
        "verifier_class": "exact",
        "num_draft_tokens": 16,
        "num_accepted_tokens": 12,
        "acceptance_rate": 0.75,
        "mean_acceptance_length": 2.5,
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.response.finish_reasons": ["stop"],
        "attestation": "ok",
        "error": None,
        "gen_ai.response.time_to_first_chunk": 0.05,
        "total_seconds": 0.4,
    }
    assert expected == {name: line[name] for name in expected}
    assert str(line["timestamp"]).endswith("Z")


def test_a_request_that_never_ran_has_a_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_record(execution=Execution(), timings=Timings(), error="queue_full: busy")
    line = _line(capsys, decision_record(signals=Signals()), outcome)
    assert (
        line["level"],
        line["mode_executed"],
        line["domain"],
        line["acceptance_rate"],
        line["mean_acceptance_length"],
        line["gen_ai.response.time_to_first_chunk"],
        line["error"],
    ) == ("warning", None, None, None, None, None, "queue_full: busy")


def test_standard_decoding_emits_one_token_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    execution = Execution(mode=Mode.STANDARD, usage=Usage(12, 20), num_steps=20)
    line = _line(capsys, decision_record(), outcome_record(execution=execution))
    assert (line["acceptance_rate"], line["mean_acceptance_length"]) == (None, 1.0)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("hostile", [HOSTILE, "a\nb", "a\rb", "a\u2028b", "a\x1b[2Jb", "a\x9b2Jb"])
def test_nothing_a_client_sends_ends_the_line_or_commands_a_terminal(
    capsys: pytest.CaptureFixture[str], hostile: str, as_json: bool
) -> None:
    request = msgspec.structs.replace(decision_record().request, model=hostile)
    decision = decision_record(
        request_id=hostile, caller=Caller(id=hostile, team=hostile), request=request
    )
    log = build_log("info", json=as_json)
    Telemetry(log=log).observe(decision, outcome_record(error=hostile))
    output = capsys.readouterr().out
    assert output.endswith("\n")
    assert len(output.splitlines()) == 1
    assert all(c.isprintable() for c in output[:-1])
    if as_json:
        assert json.loads(output)["caller"] == hostile


def test_a_text_of_any_length_is_a_line_of_bounded_length(
    capsys: pytest.CaptureFixture[str],
) -> None:
    huge = "x" * 1_000_000
    line = _line(capsys, decision_record(caller=Caller(id=huge)), outcome_record(error=huge))
    assert len(json.dumps(line)) < 5000


def test_numbers_that_json_has_no_word_for_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    signals = Signals(items=(Signal("domain", "code", math.inf, "domain"),))
    outcome = outcome_record(timings=Timings(classify=math.nan))
    line = _line(capsys, decision_record(signals=signals), outcome)
    assert (line["domain_score"], line["classify_seconds"]) == (None, None)


def test_a_failed_attestation_is_an_error_line_at_every_level(
    capsys: pytest.CaptureFixture[str],
) -> None:
    telemetry = Telemetry(log=build_log("error"))
    telemetry.observe(decision_record(), outcome_record())
    telemetry.observe(decision_record(), outcome_record(attestation="attestation_failed"))
    (line,) = capsys.readouterr().out.splitlines()
    assert (
        json.loads(line)["level"],
        json.loads(line)["attestation"],
    ) == ("error", "attestation_failed")


def test_a_request_is_counted_once_everywhere() -> None:
    telemetry = Telemetry(models=["small"])
    telemetry.observe(decision_record(), outcome_record())
    ran = {"mode": "speculative", "model": "small"}
    for expected, name, labels in (
        (1.0, "draftgate_requests_total", {**ran, "domain": "code", "outcome": "stop"}),
        (1.0, "draftgate_decisions_total", {"rule": "code", "mode": "speculative"}),
        (12.0, "draftgate_tokens_total", {**ran, "kind": "prompt"}),
        (20.0, "draftgate_tokens_total", {**ran, "kind": "completion"}),
        (16.0, "draftgate_draft_tokens_total", {"source": "suffix", "result": "proposed"}),
        (12.0, "draftgate_draft_tokens_total", {"source": "suffix", "result": "accepted"}),
        (0.05, "draftgate_ttft_seconds_sum", ran),
        (0.4, "draftgate_request_seconds_sum", ran),
        (0.0, "draftgate_attestation_failed_total", {}),
        (0.0, "draftgate_audit_failures_total", {"record": "decision"}),
        (0.0, "draftgate_audit_failures_total", {"record": "outcome"}),
    ):
        assert expected == _value(telemetry, name, **labels), (name, labels)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (outcome_record(finish_reasons=(FinishReason.STOP, FinishReason.LENGTH)), "length"),
        (outcome_record(finish_reasons=(FinishReason.STOP, FinishReason.CANCELLED)), "cancelled"),
        (outcome_record(finish_reasons=(FinishReason.CANCELLED, FinishReason.ERROR)), "error"),
        (outcome_record(finish_reasons=()), "error"),
        (outcome_record(finish_reasons=(), interrupted=True), "interrupted"),
    ],
)
def test_a_request_ends_as_the_worst_of_its_choices(outcome: OutcomeRecord, expected: str) -> None:
    telemetry = Telemetry()
    telemetry.observe(decision_record(), outcome)
    assert expected in _label_values(telemetry)


def test_a_refused_request_ends_as_denied() -> None:
    telemetry = Telemetry()
    outcome = outcome_record(finish_reasons=(FinishReason.ERROR,), execution=Execution())
    telemetry.observe(decided(deny="not here"), outcome)
    labels = {"mode": "none", "model": "other", "domain": "code", "outcome": "denied"}
    assert _value(telemetry, "draftgate_requests_total", **labels) == 1.0


def test_alarms_and_failures_are_counted() -> None:
    telemetry = Telemetry()
    telemetry.observe(decision_record(), outcome_record(attestation="attestation_failed"))
    telemetry.observe(decision_record(), outcome_record(attestation="unknown"))
    telemetry.audit_failed("outcome")
    assert _value(telemetry, "draftgate_attestation_failed_total") == 1.0
    assert _value(telemetry, "draftgate_audit_failures_total", record="outcome") == 1.0


def test_the_policy_in_force_is_one_and_the_last_one_set() -> None:
    telemetry = Telemetry()
    telemetry.set_policy("default", "aaa")
    telemetry.set_policy("default", "bbb")
    assert {
        labels: value
        for (name, labels), value in _samples(telemetry).items()
        if name == "draftgate_policy_info"
    } == {(("hash", "bbb"), ("name", "default")): 1.0}


def test_a_name_that_a_client_makes_up_never_becomes_a_label() -> None:
    telemetry = Telemetry(models=["small"], log=build_log("critical"))
    sizes = []
    for number in range(10_000):
        evil = f"evil-{number}"
        request = msgspec.structs.replace(
            decision_record().request, model=evil, endpoint=evil, response_format=evil
        )
        signals = Signals(items=(Signal("domain", evil, 1.0, evil),))
        decision = decision_record(
            request_id=evil, caller=Caller(evil, evil), request=request, signals=signals
        )
        execution = Execution(mode=Mode.STANDARD, model=evil, verifier=evil, backend=evil)
        telemetry.observe(decision, outcome_record(execution=execution, error=evil))
        if number % 2_500 == 0:
            sizes.append(len(telemetry.render().splitlines()))
    assert not [value for value in _label_values(telemetry) if "evil" in value]
    assert sizes[0] == sizes[-1]


def test_even_names_that_an_operator_gives_are_bounded() -> None:
    telemetry = Telemetry(
        (f"model-{number}" for number in range(10_000)), log=build_log("critical")
    )
    for number in range(10_000):
        execution = Execution(
            drafts_by_source={f"source-{number}": (1, 1)}, tightened_by=f"probe-{number}"
        )
        request = msgspec.structs.replace(decision_record().request, model=f"model-{number}")
        decision = msgspec.structs.replace(decided(rule=f"rule-{number}"), request=request)
        telemetry.observe(decision, outcome_record(execution=execution))
    values = _label_values(telemetry)
    assert sum(value.startswith("rule-") for value in values) == 256
    assert sum(value.startswith("model-") for value in values) == 256
    assert sum(value.startswith("probe-") for value in values) == 8
    assert sum(value.startswith("source-") for value in values) == 32
    mode = "speculative"
    assert _value(telemetry, "draftgate_decisions_total", rule="other", mode=mode) == 10_000 - 256


def test_two_gateways_in_one_process_count_apart() -> None:
    first, second = Telemetry(), Telemetry()
    before = second.render()
    first.observe(decision_record(), outcome_record())
    first.set_policy("default", "aaa")
    assert b"suffix" in first.render()
    assert b"suffix" not in second.render()
    assert b"policy_info{" not in before + second.render()
