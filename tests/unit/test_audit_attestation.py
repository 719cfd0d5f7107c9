from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.audit.attestation import attest, deviations
from gateway.audit.record import DecisionRecord
from gateway.execution import Execution
from gateway.opinion import Opinion
from gateway.tally import Moments, Tally
from gateway.types import DraftSetting, Mode, Sampling, Usage
from tests.records import decided, decision_record, outcome_record

DECIDED = decision_record(sampling=Sampling(seed=7, max_tokens=20))
RUN = outcome_record().execution
STANDARD_DECIDED = decided(mode=Mode.STANDARD, draft=None)
STANDARD_RUN = Execution(
    backend="local",
    model="small",
    mode=Mode.STANDARD,
    verifier="coupled",
    verifier_class="exact",
    usage=Usage(12, 20),
    num_steps=20,
)
HYBRID_DECIDED = decided(mode=Mode.HYBRID, standard_first=2)
LOSSY_DECIDED = decided(mode=Mode.SPECULATIVE, verifier="typical", max_distortion=0.2)
LOSSY_RUN = msgspec.structs.replace(RUN, verifier="typical", verifier_class="lossy")

OPINION = Opinion(source="probe", content_hash="a" * 64, scores={"medical": 0.02})
HARMFUL = msgspec.structs.replace(OPINION, scores={"medical": 0.8}, rule="medical")
UNJUDGED = msgspec.structs.replace(OPINION, scores={}, error="the probe gave no reading")

CHANGES: dict[str, list[Any]] = {
    "backend": ["", "other"],
    "model": ["", "large"],
    "mode": [None, Mode.STANDARD, Mode.HYBRID],
    "verifier": [None, "typical"],
    "verifier_class": [None, "lossy"],
    "usage": [Usage(12, 0), Usage(12, 7), Usage(12, 21)],
    "num_steps": [0, 3, 7, 21],
    "num_drafts": [0, 3, 5, 9],
    "num_draft_tokens": [0, 3, 11, 15, 17],
    "num_accepted_tokens": [0, 11, 13, 17],
    "longest_draft": [0, 3, 9, 17],
    "accept_counts": [(), (4,), (1, 0, 0, 1, 2), (0, 0, 0, 0, 3), (1, 1, 0, 0, 3)],
    "drafts_by_source": [
        {},
        {"model": (16, 12)},
        {"suffix": (8, 6), "model": (8, 6)},
        {"suffix": (17, 12)},
        {"suffix": (16, 11)},
        {"suffix": (16, 12), "model": (0, 0)},
    ],
    "first_draft_position": [None],
    "distortion": [0.01, -0.01],
    "tightened_by": ["probe"],
    "fallback": ["arm_down", "no_continuation"],
    "opinion": [HARMFUL, UNJUDGED],
    "tally": [
        Tally(num_tokens=21),
        Tally(num_tokens=20, num_impossible=1),
        Tally(num_tokens=0, num_impossible=1),
        Tally(num_tokens=20, accepted=Moments(observed=13.0, expected=12.0)),
    ],
}
"""What a backend must not report where `RUN` is what `DECIDED` decided."""
NOT_ATTESTED = {
    "attested_by",
    "queue_seconds",
    "prefill_seconds",
    "decode_seconds",
    "fingerprint",
    "why_k",
    "output_digests",
    "output_lengths",
}

WORK: dict[str, Any] = {
    "output_digests": ("ab",),
    "output_lengths": (3,),
    "tightened_by": "probe",
    "fallback": "arm_down",
    "opinion": OPINION,
    "mode": Mode.STANDARD,
    "verifier": "coupled",
    "verifier_class": "exact",
    "usage": Usage(12, 1),
    "num_steps": 1,
    "num_drafts": 1,
    "num_draft_tokens": 1,
    "num_accepted_tokens": 1,
    "longest_draft": 1,
    "accept_counts": (1,),
    "drafts_by_source": {"suffix": (1, 0)},
    "first_draft_position": 0,
    "distortion": 0.1,
    "tally": Tally(num_tokens=1),
    "prefill_seconds": 0.1,
    "decode_seconds": 0.1,
}
"""For each field that tells of work, a value that does."""


def changed(run: Execution, **fields: Any) -> Execution:
    return msgspec.structs.replace(run, **fields)


def all_of(changes: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(field, value) for field, values in changes.items() for value in values]


def test_every_field_of_an_execution_is_attested_or_known_not_to_be() -> None:
    assert set(Execution.__struct_fields__) == set(CHANGES) | NOT_ATTESTED
    assert set(Execution.__struct_fields__) == set(WORK) | {
        "backend",
        "model",
        "queue_seconds",
        "fingerprint",
        "attested_by",
        "why_k",
    }


@pytest.mark.parametrize(
    ("record", "run"),
    [
        (DECIDED, RUN),
        (STANDARD_DECIDED, STANDARD_RUN),
        (HYBRID_DECIDED, changed(RUN, mode=Mode.HYBRID)),
        (HYBRID_DECIDED, changed(STANDARD_RUN, mode=Mode.HYBRID)),
        (DECIDED, changed(STANDARD_RUN, mode=Mode.SPECULATIVE)),
        (DECIDED, changed(RUN, usage=Usage(12, 19))),
        (LOSSY_DECIDED, LOSSY_RUN),
        (LOSSY_DECIDED, changed(LOSSY_RUN, distortion=0.2)),
        (LOSSY_DECIDED, changed(LOSSY_RUN, distortion=0.2 + 1e-12)),
        (decision_record(sampling=Sampling()), changed(RUN, num_steps=20, usage=Usage(9, 32))),
    ],
)
def test_what_was_decided_and_nothing_else_is_attested(
    record: DecisionRecord, run: Execution
) -> None:
    assert deviations(record, run) == ()
    assert attest(record, run) == "ok"


@pytest.mark.parametrize(
    "run",
    [
        changed(LOSSY_RUN, distortion=0.21),
        changed(LOSSY_RUN, verifier="conservative"),
        changed(LOSSY_RUN, verifier_class="exact"),
        RUN,
    ],
)
def test_a_lossy_verifier_is_held_to_its_name_and_budget(run: Execution) -> None:
    assert attest(LOSSY_DECIDED, run) == "attestation_failed"


@pytest.mark.parametrize(("field", "value"), all_of(CHANGES))
def test_no_field_of_what_ran_can_be_changed_without_failing(field: str, value: Any) -> None:
    run = changed(RUN, **{field: value})

    assert attest(DECIDED, run) == "attestation_failed"
    assert all(deviations(DECIDED, run))


@pytest.mark.parametrize("field", [name for name in WORK if name.startswith(("num_d", "num_a"))])
@pytest.mark.parametrize("count", [1, -1])
def test_a_standard_answer_shows_not_one_draft_token(field: str, count: int) -> None:
    run = changed(STANDARD_RUN, **{field: count})

    assert attest(STANDARD_DECIDED, run) == "attestation_failed"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("longest_draft", 1),
        ("accept_counts", (1,)),
        ("drafts_by_source", {"suffix": (1, 0)}),
        ("first_draft_position", 0),
        ("num_steps", 19),
        ("num_steps", 21),
    ],
)
def test_no_trace_of_a_draft_is_left_in_a_standard_answer(field: str, value: Any) -> None:
    run = changed(STANDARD_RUN, **{field: value})

    assert attest(STANDARD_DECIDED, run) == "attestation_failed"


def test_a_whole_speculative_run_fails_where_standard_was_decided_whatever_it_calls_itself() -> (
    None
):
    run = changed(RUN, mode=Mode.STANDARD)

    assert deviations(STANDARD_DECIDED, run) == ("draft tokens, though none was to be proposed",)


@pytest.mark.parametrize("field", WORK)
@pytest.mark.parametrize("deny", [None, "not here"])
def test_where_no_mode_ran_nothing_ran(field: str, deny: str | None) -> None:
    record = decided(deny=deny)
    idle = Execution(backend="local", model="small")

    assert attest(record, idle) == "ok"
    assert attest(record, changed(idle, **{field: WORK[field]})) == "attestation_failed"


@pytest.mark.parametrize(
    ("record", "run"),
    [(STANDARD_DECIDED, STANDARD_RUN), (DECIDED, RUN), (HYBRID_DECIDED, RUN)],
)
def test_a_denied_request_must_not_run_even_as_it_would_have_been_decided(
    record: DecisionRecord, run: Execution
) -> None:
    decision = msgspec.structs.replace(record.decision, deny="not here")
    denied = msgspec.structs.replace(record, decision=decision)

    assert attest(denied, run) == "attestation_failed"


def test_waiting_in_vain_is_not_running() -> None:
    waited = Execution(
        backend="elsewhere", model="m", usage=Usage(9), queue_seconds=3.0, fingerprint="f"
    )

    assert attest(DECIDED, waited) == "ok"


def test_a_hybrid_answer_drafts_nothing_before_its_standard_tokens_are_out() -> None:
    run = changed(RUN, mode=Mode.HYBRID)

    assert attest(HYBRID_DECIDED, run) == "ok"
    for position in (0, 1):
        early = changed(run, first_draft_position=position)
        assert deviations(HYBRID_DECIDED, early) == (
            f"a draft token at position {position}, before 2",
        )


def test_the_decided_length_of_a_draft_is_the_most_in_any_step() -> None:
    for most, expected in ((4, "ok"), (3, "attestation_failed")):
        record = decided(draft=DraftSetting("suffix", most))
        assert expected == attest(record, RUN), most


def test_every_choice_may_have_its_own_max_tokens() -> None:
    request = msgspec.structs.replace(DECIDED.request, n=2)
    record = msgspec.structs.replace(DECIDED, request=request)

    assert attest(record, changed(RUN, num_steps=28, usage=Usage(12, 40))) == "ok"
    assert attest(record, changed(RUN, num_steps=29, usage=Usage(12, 41))) == "attestation_failed"


def test_all_that_deviated_is_said_at_once() -> None:
    run = changed(RUN, backend="b", verifier_class="lossy", drafts_by_source={"model": (16, 12)})

    assert deviations(DECIDED, run) == (
        "backend b, not local",
        "verifier class lossy, not exact",
        "draft source model, not suffix",
    )


def test_a_second_opinion_that_agrees_changes_nothing() -> None:
    run = msgspec.structs.replace(RUN, opinion=OPINION)

    assert deviations(DECIDED, run) == ()


@pytest.mark.parametrize("opinion", [HARMFUL, UNJUDGED])
@pytest.mark.parametrize("record", [DECIDED, HYBRID_DECIDED, LOSSY_DECIDED])
def test_what_was_tightened_is_held_to_standard_mode(
    record: DecisionRecord, opinion: Opinion
) -> None:
    tightened = msgspec.structs.replace(STANDARD_RUN, tightened_by="probe", opinion=opinion)

    assert deviations(record, tightened) == ()
    assert deviations(record, STANDARD_RUN) != ()
    drafted = msgspec.structs.replace(RUN, tightened_by="probe", opinion=opinion)
    assert any("mode" in text for text in deviations(record, drafted))
    assert any("none was to be" in text for text in deviations(record, drafted))


def test_tightened_without_an_opinion_is_no_account() -> None:
    run = msgspec.structs.replace(STANDARD_RUN, tightened_by="probe")

    assert "tightened by probe, without what it found" in deviations(DECIDED, run)


def test_a_second_opinion_of_what_was_decided_standard_needs_no_tightening() -> None:
    run = msgspec.structs.replace(STANDARD_RUN, opinion=UNJUDGED)

    assert deviations(STANDARD_DECIDED, run) == ()


# ---- other engines --------------------------------------------------------------------------------

FOREIGN = changed(
    RUN,
    verifier=None,
    verifier_class=None,
    attested_by="server-metrics",
    drafts_by_source={"upstream": (16, 12)},
    longest_draft=0,
)
"""What another engine tells of a run like `RUN`."""
FOREIGN_STANDARD = changed(STANDARD_RUN, attested_by="config-only")
GRACED = decided(mode=Mode.HYBRID, standard_first=2, hybrid_fallback=Mode.SPECULATIVE)
BANNED = decided(
    mode=Mode.HYBRID,
    standard_first=2,
    hybrid_fallback=Mode.SPECULATIVE,
    bans={"speculative": "medical"},
)


@pytest.mark.parametrize(
    ("record", "run"),
    [
        (DECIDED, FOREIGN),
        (DECIDED, changed(FOREIGN, num_steps=0, accept_counts=(), first_draft_position=None)),
        (STANDARD_DECIDED, FOREIGN_STANDARD),
        (DECIDED, changed(FOREIGN_STANDARD, fallback="arm_down")),
        (HYBRID_DECIDED, changed(FOREIGN, mode=Mode.HYBRID)),
        (HYBRID_DECIDED, changed(FOREIGN_STANDARD, fallback="no_continuation")),
        (GRACED, changed(FOREIGN, fallback="no_continuation")),
    ],
)
def test_another_engine_is_held_to_its_mode_and_to_what_may_stand_in_for_it(
    record: DecisionRecord, run: Execution
) -> None:
    assert deviations(record, run) == ()


@pytest.mark.parametrize(
    ("record", "run"),
    [
        (STANDARD_DECIDED, FOREIGN),
        (STANDARD_DECIDED, changed(FOREIGN, mode=Mode.STANDARD)),
        (STANDARD_DECIDED, changed(FOREIGN, fallback="arm_down")),
        (DECIDED, FOREIGN_STANDARD),
        (DECIDED, changed(FOREIGN, fallback="arm_down")),
        (HYBRID_DECIDED, changed(FOREIGN, fallback="no_continuation")),
        (GRACED, changed(FOREIGN, fallback="arm_down")),
        (BANNED, changed(FOREIGN, fallback="no_continuation")),
        (DECIDED, changed(FOREIGN, usage=Usage(12, 10_000_000))),
    ],
)
def test_another_engine_that_ran_what_was_not_decided_is_found_out(
    record: DecisionRecord, run: Execution
) -> None:
    assert deviations(record, run)
