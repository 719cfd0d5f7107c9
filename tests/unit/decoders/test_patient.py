"""Patient rows have what nobody else wants, for as long as nobody does; and how close choices were."""

import math

import pytest
import torch

from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.margin import margins
from decoders.modes import Speculative, Standard
from decoders.noise import Greedy, GumbelNoise, gumbel, position_keys
from decoders.params import FinishReason, SamplingParams
from decoders.request import QueueFull, Request
from decoders.testing import CharacterTokenizer, TableModel

TOKENIZER = CharacterTokenizer("abcd.", eos_ids=[4])


def law(prefix):
    """Depends on the last two tokens, so that a wrong cache changes the answer."""
    rows = [(0.4, 0.3, 0.2, 0.1, 0), (0.1, 0.6, 0.1, 0.2, 0), (0.2, 0.1, 0.3, 0.4, 0)]
    before = prefix[-2] if len(prefix) > 1 else 0
    return rows[(prefix[-1] + 2 * before) % 3]


def make_engine(num_slots=2, **options):
    model = TableModel(law, 5, num_slots=num_slots, max_length=64)
    return Engine(model, TOKENIZER, **options)


def request(prompt="ab", mode=None, patient=False, with_margins=False, **params):
    params = {"max_tokens": 12, "seed": 5} | params
    return Request(
        TOKENIZER.encode(prompt),
        SamplingParams(**params),
        mode or Standard(),
        patient=patient,
        with_margins=with_margins,
    )


def drain(engine):
    while engine.step():
        pass


def alone(**options):
    return make_engine().generate(request(**options)).output_ids


def test_a_patient_row_is_decoded_like_any_other_where_nothing_else_is_wanted() -> None:
    engine = make_engine()

    (ticket,) = engine.submit([request(patient=True)])
    drain(engine)

    assert ticket.sequence.output_ids == alone()
    assert ticket.sequence.finish_reason is FinishReason.LENGTH
    assert not ticket.evicted


def test_a_patient_row_never_takes_a_slot_while_another_request_waits() -> None:
    engine = make_engine(num_slots=1)
    (patient,) = engine.submit([request(patient=True)])
    usual = engine.submit([request(seed=seed) for seed in range(3)])

    while engine.step():
        if not all(ticket.done.is_set() for ticket in usual):
            assert patient.slot == -1

    assert [ticket.sequence.output_ids for ticket in usual] == [alone(seed=s) for s in range(3)]
    assert patient.sequence.output_ids == alone()


@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_patient_row_is_given_up_within_one_step_and_leaves_no_trace(
    num_slots: int, steps: int
) -> None:
    engine = make_engine(num_slots=num_slots)
    (patient,) = engine.submit([request(patient=True)])
    for _ in range(steps):
        engine.step()
    usual = engine.submit([request(seed=seed, mode=_speculative()) for seed in range(5)])

    engine.step()

    assert patient.done.is_set()
    assert patient.evicted
    assert patient.sequence.finish_reason is FinishReason.CANCELLED
    assert engine.num_running == min(num_slots, 5)
    drain(engine)
    assert [ticket.sequence.output_ids for ticket in usual] == [alone(seed=s) for s in range(5)]


def test_a_patient_row_beside_others_changes_no_token_of_theirs() -> None:
    engine = make_engine(num_slots=3, prefill_chunk_tokens=2)
    usual = engine.submit([request(seed=1, mode=_speculative()), request("abcd", seed=2)])
    engine.step()
    (patient,) = engine.submit([request("dcba", patient=True, seed=3)])

    drain(engine)

    found = [ticket.sequence.output_ids for ticket in (*usual, patient)]
    assert found == [alone(seed=1), alone(prompt="abcd", seed=2), alone(prompt="dcba", seed=3)]
    assert not patient.evicted


def test_what_is_patient_takes_no_room_from_what_is_not() -> None:
    engine = make_engine(num_slots=1, max_queue=1)
    engine.submit([request(patient=True)])
    engine.step()
    (waiting,) = engine.submit([request(patient=True)])

    assert (engine.num_running, engine.num_waiting) == (1, 0)
    with pytest.raises(QueueFull, match="patient"):
        engine.submit([request(patient=True)])
    usual = engine.submit([request(), request()])
    with pytest.raises(QueueFull, match="2 requests of this caller are waiting"):
        engine.submit([request()])
    drain(engine)
    assert all(ticket.done.is_set() for ticket in (*usual, waiting))


def test_a_patient_request_that_waits_can_be_cancelled_and_ends_with_the_engine() -> None:
    engine = make_engine(num_slots=1)
    engine.submit([request()])
    (one, two) = engine.submit([request(patient=True), request(patient=True)])

    one.cancel()
    engine.step()
    assert one.done.is_set()
    engine.stop()

    assert two.done.is_set()
    assert [one.evicted, two.evicted] == [False, False]


def test_patient_requests_alone_wake_the_engine() -> None:
    engine = make_engine()
    engine.start()
    try:
        (ticket,) = engine.submit([request(patient=True)])
        assert ticket.done.wait(10)
    finally:
        engine.stop()


def test_a_margin_is_the_distance_of_the_two_best_scores_with_their_noise() -> None:
    scores = torch.tensor([[0.0, 1.5, -1.0], [2.0, -math.inf, 1.75]])

    assert margins(scores, Greedy(), 7) == pytest.approx([1.5, 0.25])
    perturbed = scores.double() + gumbel(position_keys(3, 7, 2), 3, scores.device)
    best = perturbed.sort(dim=-1, descending=True).values
    expected = (best[:, 0] - best[:, 1]).tolist()
    assert margins(scores, GumbelNoise(3), 7) == pytest.approx(expected)
    assert margins(torch.tensor([[0.0, -math.inf]]), Greedy(), 0) == [math.inf]


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_row_keeps_one_margin_a_token_whichever_way_it_is_decoded(temperature: float) -> None:
    found = []
    for mode in (Standard(), _speculative()):
        engine = make_engine()
        (ticket,) = engine.submit([request(mode=mode, with_margins=True, temperature=temperature)])
        drain(engine)
        found.append((ticket.sequence.output_ids, pytest.approx(ticket.margins)))

    assert len(found[0][0]) == 12
    assert found[1][0] == found[0][0]
    assert ticket.margins == found[0][1]
    assert all(margin > 0 for margin in ticket.margins)


def test_a_row_that_did_not_ask_keeps_none() -> None:
    engine = make_engine()
    (ticket,) = engine.submit([request()])
    drain(engine)

    assert ticket.margins == []


def _speculative() -> Speculative:
    return Speculative(SuffixDraftSource(), 4)
