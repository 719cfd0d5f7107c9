"""Modes and gates decide where drafts may stand."""

import math

import pytest
import torch

from decoders.draft import Draft
from decoders.gates import ContentTokens, EntropyGate, FunctionWords, GateContext, StandardFirst
from decoders.modes import Hybrid, Speculative, Standard
from decoders.testing import ScriptedDraftSource

PIECES = [" the", " cat", " of", " in", "formation", ",", " ", " The", "\n\n", "ing", " 42", " 在"]
SOURCE = ScriptedDraftSource(lambda tokens, count: [0] * count)


def ids(*pieces):
    return tuple(PIECES.index(piece) for piece in pieces)


@pytest.mark.parametrize(
    ("pieces", "simple"),
    [
        ((" the", " of", " cat"), 2),
        ((" cat", " of"), 0),
        ((" of", ",", "\n\n", " The"), 4),
        ((" in", "formation"), 0),
        ((" of", " in", "formation"), 1),
        ((" in",), 1),
        ((" the", " 42"), 1),
        ((" the", " 在"), 1),
        ((), 0),
    ],
)
def test_a_draft_is_cut_before_its_first_content_token(pieces, simple):
    gate = ContentTokens(FunctionWords(PIECES))

    assert gate.admit(GateContext(3), ids(*pieces)) == simple


def test_standard_first_admits_nothing_before_its_position_and_all_from_it_on():
    gate = StandardFirst(10)

    assert gate.admit(GateContext(9), (1, 2, 3)) == 0
    assert gate.admit(GateContext(10), (1, 2, 3)) == 3
    assert StandardFirst(0).admit(GateContext(0), (1,)) == 1


def test_a_standard_row_has_no_source_and_admits_nothing():
    assert Standard().source(5) is None
    assert len(Standard().admit(Draft((1, 2), "x"), GateContext(5))) == 0


def test_a_speculative_row_takes_drafts_whole():
    mode = Speculative(SOURCE, 4)

    assert mode.source(0) == (SOURCE, 4)
    assert mode.admit(Draft((1, 2), "x"), GateContext(0)) == Draft((1, 2), "x")


def test_every_gate_of_a_hybrid_row_must_admit():
    mode = Hybrid(SOURCE, [StandardFirst(2), ContentTokens(FunctionWords(PIECES))])
    draft = Draft(ids(" the", " of", " cat"), "x")

    assert mode.admit(draft, GateContext(1)).token_ids == ()
    assert mode.admit(draft, GateContext(2)).token_ids == ids(" the", " of")


@pytest.mark.parametrize("count", [0, -1])
def test_a_useless_number_of_tokens_is_refused(count):
    with pytest.raises(ValueError, match="at least 1"):
        Speculative(SOURCE, count)


def test_a_negative_start_is_refused():
    with pytest.raises(ValueError, match="at least 0"):
        StandardFirst(-1)


def scores(*law):
    return torch.tensor([math.log(mass) if mass else -math.inf for mass in law])


@pytest.mark.parametrize(
    ("law", "admitted"),
    [((0.5, 0.5), 3), ((0.9, 0.1), 3), ((1.0, 0.0), 3), ((0.4, 0.3, 0.3), 0), ((0.25,) * 4, 0)],
)
def test_drafts_stand_only_where_the_target_was_sure_of_the_token_before(law, admitted):
    gate = EntropyGate(math.log(2) + 1e-6)

    assert gate.admit(GateContext(4, scores(*law)), (1, 2, 3)) == admitted


def test_the_entropy_is_in_nats_and_unlikely_tokens_have_no_part_in_it():
    assert GateContext(1, scores(0.5, 0.5, 0.0)).last_entropy == pytest.approx(math.log(2))
    assert GateContext(1, scores(1.0, 0.0)).last_entropy == pytest.approx(0.0)
    assert GateContext(0).last_entropy is None


def test_before_the_first_token_there_is_no_entropy_and_no_draft():
    assert EntropyGate(5.0).admit(GateContext(0), (1,)) == 0


@pytest.mark.parametrize("bound", [0, -1, math.inf, math.nan])
def test_a_bound_that_bounds_nothing_is_refused(bound):
    with pytest.raises(ValueError, match="max_entropy"):
        EntropyGate(bound)
