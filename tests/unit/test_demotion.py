"""Demotions as a part of deciding: pure, stricter only, and told in the trace."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.cell import OTHER, Cell, decided_cell
from gateway.routing.decide import decide
from gateway.routing.demotion import NO_DEMOTIONS, Demotions
from gateway.routing.policy import parse_policy
from gateway.types import Caller, ChatRequest, Decision, Message, Mode, Signals

TEXT = """\
version: 1
name: unit
rules:
  - {id: forbidden, deny: Not here., when: {keyword: [forbidden]}}
  - id: loose
    when: {keyword: [loose]}
    decide: {mode: speculative, verifier: typical, allow_lossy: true, max_distortion: 0.1}
  - id: other-verifier
    when: {keyword: [residual]}
    decide: {mode: hybrid, standard_first: 2, verifier: rejection}
  - id: fast
    when: {keyword: [fast]}
    caller_may_choose: true
    decide: {mode: speculative, max_tokens: 7}
"""
POLICY = parse_policy(
    TEXT,
    "unit.yaml",
    verifiers=["coupled", "rejection", "typical"],
    draft_sources=["suffix"],
)
FAST = Cell("none", "speculative", "coupled", "small", "suffix")


def decision(text: str, demotions: Demotions = NO_DEMOTIONS, **request: Any) -> Decision:
    asked = ChatRequest(model="small", messages=(Message("user", text),), **request)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return decide(POLICY, Signals(), asked, Caller(), prompt_tokens=3, now=now, demotions=demotions)


def test_a_demoted_cell_is_decided_standard_and_the_trace_says_so() -> None:
    demotions = Demotions({FAST.id: "since then, for this"})
    before, after = decision("fast"), decision("fast", demotions)

    assert (before.mode, decided_cell(Signals(), "small", before)) == (Mode.SPECULATIVE, FAST)
    assert (after.mode, after.verifier, after.draft, after.rule) == (
        Mode.STANDARD,
        "coupled",
        None,
        "fast",
    )
    assert after.limits == before.limits
    assert after.reason == "speculative is demoted: since then, for this"
    line = after.trace[-1]
    assert (line.rule, line.kind, line.matched) == (FAST.id, "evidence", True)
    assert after.trace[:-1] == before.trace


@pytest.mark.parametrize("text", ["residual", "loose"])
def test_the_verifier_of_a_demoted_request_is_exact_and_coupled(text: str) -> None:
    cell = decided_cell(Signals(), "small", decision(text))
    after = decision(text, Demotions({cell.id: "why"}))
    assert (after.mode, after.verifier, after.max_distortion) == (Mode.STANDARD, "coupled", None)


def test_no_wish_of_a_caller_brings_a_demoted_mode_back() -> None:
    demotions = Demotions({FAST.id: "why"})
    after = decision("fast", demotions, requested_mode=Mode.SPECULATIVE)
    assert after.mode is Mode.STANDARD


def test_other_cells_standard_decisions_and_refusals_stay_as_they_are() -> None:
    demotions = Demotions({FAST.id: "why"})
    for text in ("nothing", "residual", "forbidden"):
        assert decision(text, demotions) == decision(text)


def test_where_all_others_are_demoted_only_cells_with_a_place_of_their_own_are_not() -> None:
    assert decision("fast", Demotions({OTHER.id: "why"}, known={FAST.id})) == decision("fast")
    after = decision("fast", Demotions({OTHER.id: "why"}))
    assert (after.mode, after.trace[-1].rule) == (Mode.STANDARD, OTHER.id)


def test_what_a_decision_on_record_met_decides_it_the_same_again() -> None:
    after = decision("fast", Demotions({FAST.id: "why"}))
    assert decision("fast", Demotions.recorded(after.trace)) == after
