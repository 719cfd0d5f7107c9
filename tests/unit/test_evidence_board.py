"""Evidence by cell: what a board makes of outcomes, and what raises an alarm."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from gateway.audit.record import DecisionRecord, EvidenceEvent, OutcomeRecord, Shadow
from gateway.cell import OTHER, Cell
from gateway.evidence.alarm import Bounds, alarm, cause
from gateway.evidence.board import Board, Settled, Snapshot
from gateway.evidence.eprocess import EProcess
from gateway.evidence.reading import Reading, readings
from gateway.evidence.state import CellState
from gateway.tally import Moments, Tally
from gateway.types import DraftSetting, Mode, Signals
from tests.records import decided, decision_record, outcome_record

CODE = Cell("code", "speculative", "coupled", "small", "suffix")
STRONG = Tally(num_tokens=20, log_factors={"leak": 20.0})


def outcome(number: int = 0, tally: Tally | None = None, **run: Any) -> OutcomeRecord:
    record = outcome_record(number)
    execution = msgspec.structs.replace(record.execution, tally=tally, **run)
    return msgspec.structs.replace(record, execution=execution)


def settled(
    position: int,
    outcome: OutcomeRecord | None = None,
    decision: DecisionRecord | None = None,
    writer: str = "w",
) -> Settled:
    return Settled(
        writer, position, (decision or decision_record(position), outcome or outcome_record(0))
    )


def test_requests_are_added_up_in_the_cell_of_what_ran() -> None:
    board = Board(8)
    measured = Tally(
        num_tokens=20,
        log_factors={"leak": 0.5},
        accepted=Moments(12.0, 11.5, 2.0),
    )
    for position in (1, 2):
        board.fold(settled(position, outcome(tally=measured)))
    tightened = outcome(mode=Mode.STANDARD, num_drafts=0, drafts_by_source={})
    board.fold(settled(3, tightened))

    code, standard = board.states
    assert code.cell == CODE
    assert (code.requests, code.num_tokens) == (2, 40)
    assert code.tally.accepted == Moments(24.0, 23.0, 4.0)
    assert code.eprocess.log_products == {"leak": 1.0}
    assert standard.cell == Cell("code", "standard", "coupled", "small")


def test_a_request_without_a_domain_or_without_a_run_has_its_place_or_none() -> None:
    board = Board(8)
    board.fold(settled(1, decision=decision_record(1, signals=Signals())))
    board.fold(settled(2, outcome(mode=None)))
    board.fold(Settled("w", 3, None))

    assert [state.cell.domain for state in board.states] == ["none"]
    assert board.positions == {"w": 3}


def test_a_request_that_comes_twice_counts_once() -> None:
    board = Board(8)
    for position in (1, 2, 2, 1):
        board.fold(settled(position))
    board.fold(settled(1, writer="v"))
    restored = Board(8, msgspec.json.decode(msgspec.json.encode(board.snapshot), type=Snapshot))
    restored.fold(settled(2))
    restored.fold(settled(3))

    assert board.states[0].requests == 3
    assert restored.states[0].requests == 4
    assert restored.positions == {"w": 3, "v": 1}


def test_cells_beyond_the_limit_are_counted_together_and_nothing_lossy_bets_there() -> None:
    board = Board(2)
    for position, model in enumerate(("a", "b", "c", "d", "a"), 1):
        record = decision_record(position)
        request = msgspec.structs.replace(record.request, model=model)
        record = msgspec.structs.replace(record, request=request)
        verifier = "lossy" if model == "d" else "exact"
        board.fold(settled(position, outcome(tally=STRONG, verifier_class=verifier), record))

    found = {state.cell.model: state for state in board.states}
    assert {model: state.requests for model, state in found.items()} == {"a": 2, "b": 1, "other": 2}
    assert found["other"].cell == OTHER
    assert found["other"].eprocess.log_products == {"leak": 20.0}
    assert OTHER.id not in board.known
    assert len(board.known) == 2


def test_a_lossy_run_keeps_its_account_of_distortion() -> None:
    board = Board(8)
    record = decided(1, verifier="conservative", max_distortion=0.5)
    run = outcome(verifier="conservative", verifier_class="lossy", distortion=0.2)
    board.fold(settled(1, run, record))

    reading = Reading.of(board.states[0], None)
    assert (reading.lossy_requests, reading.distortion, reading.budget) == (1, 0.2, 0.5)
    assert reading.remaining_budget == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (outcome(tally=Tally(num_tokens=20)), None),
        (outcome(tally=Tally(num_tokens=20, num_impossible=1)), "impossible_token"),
        (
            outcome(tally=Tally(num_tokens=1, num_impossible=1), verifier_class="lossy"),
            None,
        ),
        (outcome_record(attestation="attestation_failed"), "attestation_failed"),
        (outcome_record(attestation="unknown"), None),
        (outcome(tally=Tally(num_tokens=20, log_factors={"leak": 13.7})), None),
        (outcome(tally=Tally(num_tokens=20, log_factors={"leak": 13.9})), "e_value"),
        (outcome(tally=STRONG, verifier_class="lossy"), None),
    ],
)
def test_what_raises_an_alarm(found: OutcomeRecord, expected: str | None) -> None:
    state = CellState(cell=CODE).add(decision_record(), found)
    assert cause(state, found, Bounds(alpha=1e-6)) == expected


def test_a_fault_that_begins_late_is_found_by_the_form_that_restarts() -> None:
    state = CellState(cell=CODE, eprocess=EProcess({"leak": -500.0}, {"leak": 0.0}))
    late = outcome(tally=STRONG)
    assert cause(state.add(decision_record(), late), late, Bounds()) == "change"


def test_a_failed_attestation_can_be_left_to_others() -> None:
    failed = outcome_record(attestation="attestation_failed")
    state = CellState(cell=CODE).add(decision_record(), failed)
    assert cause(state, failed, Bounds(attestation=False)) is None


def test_standard_cells_raise_alarms_and_are_not_demoted() -> None:
    for cell, demote, expected in (
        (CODE, True, True),
        (CODE, False, False),
        (Cell("code", "standard", "coupled", "small"), True, False),
    ):
        bounds = Bounds(demote=demote)
        event = alarm(CellState(cell=cell), outcome_record(), "e_value", bounds, at=1.0)
        assert event.demotes is expected


def test_a_cleared_cell_bets_anew_and_keeps_its_counts() -> None:
    board = Board(8)
    board.fold(settled(1, outcome(1, STRONG)))
    clearing = EvidenceEvent(happened_at=1005.0, kind="clearing", cell=CODE)
    board.clear([clearing])
    # What ended before the clearing is settled with it, whenever it is read.
    old = outcome(2, STRONG)
    state = board.fold(settled(2, old))
    assert state is not None
    assert (state.requests, state.tally.num_tokens) == (2, 40)
    assert state.eprocess == EProcess()
    assert cause(state, old, Bounds()) is None

    new = outcome(9, STRONG)
    state = board.fold(settled(3, new))
    assert state is not None
    assert cause(state, new, Bounds()) == "e_value"
    board.clear([clearing])
    assert board.states[0].eprocess.log_e == pytest.approx(20.0)


def test_a_clearing_counts_though_nothing_of_its_cell_was_read_yet() -> None:
    board = Board(8)
    board.clear([EvidenceEvent(happened_at=1005.0, kind="clearing", cell=CODE)])
    state = board.fold(settled(1, outcome(1, STRONG)))
    assert state is not None
    assert state.eprocess == EProcess()


def test_a_clearing_does_not_take_the_place_of_another_cell() -> None:
    board = Board(1)
    board.fold(settled(1))
    absent = Cell("legal", "hybrid", "coupled", "small", "suffix")
    board.clear([EvidenceEvent(happened_at=1005.0, kind="clearing", cell=absent)])
    board.fold(settled(2, decision=decided(2, draft=DraftSetting("model", 4))))
    assert sum(state.requests for state in board.states) == 2


def test_a_reading_has_intervals_and_says_nothing_of_nothing() -> None:
    state = CellState(cell=CODE)
    empty = Reading.of(state, None)
    assert (empty.acceptance.mean, empty.log10_e, empty.last_at) == (None, 0.0, None)
    assert (empty.shadow.low, empty.shadow.high) == (0.0, 1.0)

    tally = Tally(
        num_tokens=4000,
        surprisal=Moments(7600.0, 8000.0, 4000.0),
        tail=Moments(40.0, 80.0, 80.0),
    )
    state = msgspec.structs.replace(state, tally=tally, eprocess=EProcess({"a": -math.inf}, {}))
    reading = Reading.of(state, None)
    assert reading.log10_e is None
    assert reading.surprisal.mean == pytest.approx(-0.1)
    assert reading.surprisal.low is not None
    assert reading.surprisal.high is not None
    assert reading.surprisal.low < -0.1 < reading.surprisal.high
    assert reading.tail.ratio == 0.5
    assert reading.tail.ratio_low is not None
    assert reading.tail.ratio_high is not None
    assert reading.tail.ratio_low < 0.5 < reading.tail.ratio_high
    msgspec.json.encode(reading)


def test_shadow_runs_are_counted_and_bounded() -> None:
    board = Board(8)
    for position, result in enumerate(("equal", "equal", "different", "dropped"), 1):
        shadow_run = Shadow(decision_id="dec", added_at=1.0, result=result)
        board.fold(settled(position, outcome())._replace(shadow=shadow_run))
    assert board.states[0].requests == 0
    shadow = Reading.of(board.states[0], None).shadow
    assert (shadow.runs, shadow.equal) == (3, 2)
    assert shadow.low == pytest.approx(0.0943, abs=1e-3)
    assert shadow.high == pytest.approx(0.9916, abs=1e-3)


def test_cells_in_alarm_come_first_and_outlive_their_counts() -> None:
    quiet = CellState(cell=Cell("code", "standard", "coupled", "small"), requests=9)
    event = EvidenceEvent(happened_at=1.0, kind="alarm", cell=CODE, demotes=True)
    found = readings([quiet], {CODE.id: event})
    assert [(reading.cell, reading.state) for reading in found] == [
        (CODE, "demoted"),
        (quiet.cell, "ok"),
    ]


def test_the_id_of_a_cell_is_fit_for_a_url_and_its_own() -> None:
    slashed = Cell("code", "speculative", "coupled", "org/a model?", "suffix")
    assert slashed.id.isalnum()
    assert len({slashed.id, CODE.id, OTHER.id}) == 3
    assert Cell("a", "b", "c", "d").id != Cell("ab", "", "c", "d").id


def test_a_failed_attestation_counts_where_it_was_decided_and_lossy_tokens_do_not_bet() -> None:
    board = Board(8)
    ran = outcome(tally=STRONG, verifier="typical", verifier_class="lossy")
    state = board.fold(settled(1, msgspec.structs.replace(ran, attestation="attestation_failed")))

    assert state is not None
    assert (state.cell, state.attestation_failures) == (CODE, 1)
    assert state.eprocess == EProcess()
